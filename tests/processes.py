"""Command lines in several processes at once, as torchrun would start them, forked from one that has trained a little.

Imports and the first parse take several times as long as a small training. As a program it reads from standard input
one JSON list a line, the environment and the words of each process, and answers each with a line, the exit status and
standard error of each.
"""

import contextlib
import io
import json
import os
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from project.__main__ import main


def torchrun(nodes: int, devices: int) -> list[dict[str, str]]:
    """What torchrun would add to the environment of each process."""
    fixed = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "TORCHELASTIC_RUN_ID": "test"}
    fixed |= {"WORLD_SIZE": str(nodes * devices), "LOCAL_WORLD_SIZE": str(devices)}
    return [
        fixed | {"RANK": str(rank), "LOCAL_RANK": str(rank % devices), "GROUP_RANK": str(rank // devices)}
        for rank in range(nodes * devices)
    ]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def start(environment: dict[str, str], arguments: list[str], folder: Path) -> int:
    """The id of a process that writes `out` and `err` into the folder."""
    folder.mkdir()
    if pid := os.fork():
        return pid
    os.environ |= environment
    for name, descriptor in ("out", 1), ("err", 2):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), descriptor)
    try:
        status = main(arguments)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)


def run(processes: list[Any], seconds: float = 100.0) -> list[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(i) for i in range(len(processes))]
        left = {start(*process, folder): i for i, (process, folder) in enumerate(zip(processes, folders, strict=True))}
        statuses, end = dict.fromkeys(left.values(), -1), time.monotonic() + seconds
        while left:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                statuses[left.pop(pid)] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                for pid in left:
                    os.kill(pid, 9)
            else:
                time.sleep(0.02)
        return [(statuses[i], folder.joinpath("err").read_text()) for i, folder in enumerate(folders)]


def train_a_little() -> None:
    import pytest  # noqa: F401  as the callbacks of tests do

    import project.strategies  # noqa: F401

    options = ["--trainer.fast_dev_run=1", "--trainer.logger=false"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["fit", "--config", "configs/digits.yaml", *options]) == 0


if __name__ == "__main__":
    train_a_little()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
