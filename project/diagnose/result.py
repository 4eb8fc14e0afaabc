"""What a check says."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Result:
    """One line of the report.

    Args:
        check: name of the check, as in `project.diagnose.CHECKS`.
        status: a failure stops training from working, a warning may; not run, since an earlier check has shown that
            the same line raises.
        seen: what was measured, one line.
        advice: what to do, one line; every failure has one.
        values: the same in numbers, for check.json and the picture; JSON can hold them.
    """

    check: str
    status: Literal["pass", "warning", "failure", "not run"]
    seen: str
    advice: str = ""
    values: dict[str, Any] = field(default_factory=dict)
