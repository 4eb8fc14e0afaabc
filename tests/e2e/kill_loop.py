"""Train, be killed by SIGKILL at random moments, go on, and at last be left in peace: python -m ... CONFIG RUN KILLS.

Imports once and forks a process for each attempt, since importing takes longer than training.
"""

import itertools
import os
import random
import signal
import sys
import threading

import project.cli  # noqa: F401
from project.__main__ import main
from project.tasks import SequenceClassification


def attempt(arguments: list[str], batches: int | None) -> int:
    """Exit status of one session; after so many batches it is killed at some moment of the next."""
    pid = os.fork()
    if pid == 0:
        left = itertools.count(batches or 0, -1)
        timer = threading.Timer(random.uniform(0.0, 0.03), os.kill, (os.getpid(), signal.SIGKILL))

        def count_down(*_: object) -> None:
            if batches is not None and next(left) == 0:
                timer.start()

        SequenceClassification.on_train_batch_start = count_down  # type: ignore[assignment]
        os._exit(main(arguments))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


config, run, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(kills)
arguments = ["fit", "--config", config, "--run", run, "--ckpt_path", "auto"]
for _ in range(kills):
    status = attempt(arguments, random.randrange(10))
    assert status == -signal.SIGKILL, status
sys.exit(attempt(arguments, None))
