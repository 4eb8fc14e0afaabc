"""What the verbs that are not Lightning's are told: as strict as `project.parser`, and as short about a mistake."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from project.errors import UserError, nearest


class Options(argparse.ArgumentParser):
    """Raises `UserError`, with the nearest name, instead of printing the usage.

    Args:
        verb: whose options they are.
        description: of the verb.
        settings: others of `argparse.ArgumentParser`.
    """

    def __init__(self, verb: str, description: str | None, **settings: Any) -> None:
        super().__init__(f"python -m project {verb}", description=description, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (-[\w-]+)", message)
        meant = nearest(unknown[1], self._option_string_actions) if unknown else None
        raise UserError(f"{message}; " + (f"did you mean {meant}?" if meant else f"see {self.prog} --help"))

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does, but a slip in a name of this verb's is none of those left to another parser."""
        known, rest = super().parse_known_args(args, namespace)
        for word in rest:
            if word.startswith("-") and nearest(word.partition("=")[0], self._option_string_actions, 0.8):
                self.error(f"unrecognized arguments: {word}")
        return known, rest
