"""An artifact in a process of its own: it proves that the file alone is enough, and a crash ends nothing else.

Not by `multiprocessing`, which would import the main module of whoever exports into it.
"""

import os
import pickle
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from project.export.artifacts import ARTIFACTS, Array, ArtifactError, Contents, Reader, failure
from project.export.interface import Interface

PATIENCE = 300.0  # seconds for one answer


def environment() -> dict[str, str]:
    """For a Python process that can import what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}


class FreshProcess:
    """Starts at once and loads in the background. Use as a context.

    Args:
        name: of the artifact.
        path: its file.
        interface: what its inputs are checked against.
        threads: how many it computes with.
    """

    def __init__(self, name: str, path: Path, interface: Interface, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "project.export.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment(), "TORCH_CPP_LOG_LEVEL": "ERROR"},  # torch warns of its deprecated formats
        )
        self._send((name, path, interface, threads))

    def __enter__(self) -> "FreshProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, at once: leaving by itself would take torch a second, and serves nobody."""
        self._process.kill()
        self._process.communicate()

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()

    def _ask(self, question: str, arrays: list[Array], repeats: int = 1) -> Any:
        assert self._process.stdout is not None
        try:
            self._send((question, arrays, repeats))
            if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
                raise ArtifactError(f"no answer within {PATIENCE:.0f} s")
            answer = pickle.load(self._process.stdout)
        except (EOFError, OSError):
            raise ArtifactError(f"the process that ran it died, exit code {self._process.wait()}") from None
        if isinstance(answer, ArtifactError):
            raise answer
        return answer

    def contents(self) -> Contents:
        """What the file says of itself."""
        contents: Contents = self._ask("contents", [])
        return contents

    def run(self, inputs: list[Array]) -> list[Array]:
        """Outputs of inputs. ArtifactError for whatever goes wrong there, a crash included."""
        outputs: list[Array] = self._ask("run", inputs)
        return outputs

    def seconds(self, inputs: list[Array], repeats: int) -> float:
        """Mean time of a call."""
        seconds: float = self._ask("time", inputs, repeats)
        return seconds


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Load the file, then answer until there are no more questions."""

    def answer(content: Any) -> None:
        pickle.dump(content, answers)
        answers.flush()

    try:
        name, path, interface, threads = pickle.load(questions)
        try:
            reader = ARTIFACTS[name].read(path, threads)
        except Exception as error:
            pickle.load(questions)
            answer(ArtifactError(failure(error)))
            return
        while True:
            question = pickle.load(questions)
            try:
                answer(_answer(reader, interface, *question))
            except Exception as error:
                answer(ArtifactError(failure(error)))
    except EOFError:
        return


def _answer(reader: Reader, interface: Interface, question: str, arrays: list[Array], repeats: int) -> Any:
    if question == "contents":
        return reader.contents()
    interface.check(arrays)
    start = time.perf_counter()
    for _ in range(repeats):
        outputs = reader.run(arrays)
    return outputs if question == "run" else (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print does not come between the answers
    serve(sys.stdin.buffer, pipe)
