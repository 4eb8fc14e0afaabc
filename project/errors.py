"""What ends a run in one line, without a traceback."""

import signal
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def first_line(error: BaseException) -> str:
    """What an error says, without what follows its first line."""
    return str(error).strip().partition("\n")[0]


def one_line(error: BaseException) -> str:
    """All that an error says, for one whose first line alone would not do."""
    return " ".join(str(error).split())


def nearest(word: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """The name that a slip may stand for; None if no name is as like, from 0 for any to 1 for the same."""
    return next(iter(get_close_matches(word, list(names), 1, likeness)), None)


def some(names: Sequence[str], most: int) -> str:
    """``a, b, c and 4 more``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class UserError(Exception):
    """Bad input. The message says what is wrong, where (file, key, row), and what to do."""


class ElsewhereError(UserError):
    """Another process of the training has failed. The message says of what."""


class Interrupted(Exception):  # noqa: N818
    """Training was told to stop by a signal, and has saved."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}, {what}")
        self.exit_code = 128 + number
