"""One training in a process of its own, which outlives neither Ctrl-C nor SIGTERM, and saves on both."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO

from project.errors import Interrupted


def run_fit(options: Sequence[str], environment: Mapping[str, str], lock: IO[str]) -> int:
    """Run `python -m project fit` to its end, and give its exit code.

    Args:
        environment: what is added to that of this process.
        lock: a file that the training holds open, so that it counts as under way should only this process be killed.

    Raises:
        Interrupted: this process was told to stop; the training was too, and has saved.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "project", "fit", *options],
        env={**os.environ, **environment},
        pass_fds=[lock.fileno()],
        process_group=0,  # a terminal's Ctrl-C reaches this process alone, which passes it on once
    )
    told: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        process.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if told:
        raise Interrupted(told[0], "the same command goes on with the sweep")
    return code
