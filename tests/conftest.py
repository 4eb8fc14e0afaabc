"""Small data for everybody, and no state carried from one test to the next."""

import csv
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from project.runs import ENVIRONMENT_VARIABLE

WORDS = {
    "animal": ["dog", "cat", "horse", "bird"],
    "food": ["bread", "cheese", "soup", "cake"],
    "tool": ["hammer", "saw", "drill", "wrench"],
}
FILLER = [
    "a",
    "an",
    "of",
    "the",
    "small",
    "large",
    "old",
    "new",
    "with",
    "and",
    "for",
    "used",
    "kept",
    "found",
    "made",
    "near",
    "under",
]


@pytest.fixture(autouse=True)
def _nothing_is_left_to_the_next_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor a run, a seed for samplers, a log handler on closed output, a run or a word of W&B's."""
    for name in ("PL_GLOBAL_SEED", "WANDB_SERVICE"):  # of a fixture that has trained for several tests
        os.environ.pop(name, None)
    before = set(os.environ)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    for name in set(os.environ) - before:
        if name in (ENVIRONMENT_VARIABLE, "PL_GLOBAL_SEED") or name.startswith("WANDB_"):
            os.environ.pop(name, None)
    if "wandb" in sys.modules and (active := sys.modules["wandb"].run) is not None:
        active.finish()
    logging.getLogger("project").handlers.clear()


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 600 short texts in three classes that a word decides."""
    generator = random.Random(0)
    rows = []
    for i in range(600):
        label = generator.choice(list(WORDS))
        words = generator.choices(FILLER, k=generator.randint(1, 12))
        words.insert(generator.randint(0, len(words)), generator.choice(WORDS[label]))
        rows.append([" ".join([*words, str(i)]), label])
    file = tmp_path_factory.mktemp("data") / "texts.csv"
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([["text", "label"], *rows])
    return file


Together = Callable[[list[tuple[dict[str, str], list[str]]]], list[tuple[int, str]]]


@pytest.fixture(scope="session")
def together() -> Iterator[Together]:
    """Runs command lines at once, of each its environment and words; gives exit status and standard error of each."""
    command = [sys.executable, "-m", "tests.processes"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    root = Path(__file__).parents[1]
    server = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=root, env=environment)
    assert server.stdin and server.stdout and server.stdout.readline() == "ready\n"

    def run(processes: list[tuple[dict[str, str], list[str]]]) -> list[tuple[int, str]]:
        assert server.stdin and server.stdout
        print(json.dumps(processes), file=server.stdin, flush=True)
        return [(status, error) for status, error in json.loads(server.stdout.readline())]

    yield run
    server.stdin.close()
    server.wait(timeout=30)
