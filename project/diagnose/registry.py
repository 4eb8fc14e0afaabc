"""All checks by name, in the order in which they run."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from project.diagnose.result import Result

if TYPE_CHECKING:
    from project.diagnose.subject import Subject

Check = Callable[["Subject"], Result | None]  # None: does not apply to this model or data

CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Register a function as the check of this name."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register
