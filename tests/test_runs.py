"""Run folders: unique, named exactly, removed when nothing came of them."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from project.errors import UserError
from project.runs import Run, import_class


def test_runs_started_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda _: Run.create("same", tmp_path), range(64)))
    assert len({run.folder for run in runs}) == 64
    assert all(run.folder.is_dir() and not list(run.folder.iterdir()) for run in runs)


def test_a_run_is_found_from_anything_inside_it(tmp_path: Path) -> None:
    run = Run.create("name", tmp_path)
    run.config_file.write_text("name: name\n")
    run.checkpoints.mkdir()
    checkpoint = run.checkpoints / "best.ckpt"
    checkpoint.touch()
    assert Run.open(checkpoint) == Run.open(run.folder) == run
    assert run.checkpoint() == checkpoint and run.name == "name" and run.config == {"name": "name"}
    with pytest.raises(UserError, match=r"no checkpoint last\.ckpt \(there: best\.ckpt\)"):
        run.checkpoint("last")


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    run = Run.create("name", tmp_path)
    run.config_file.touch()
    with pytest.raises(UserError, match="did you mean"):
        Run.open(tmp_path)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from project.runs import Run; Run(Path(sys.argv[1])).lock(); print(1)"
    )
    command = [sys.executable, "-uc", f"{script}; sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"1\n"
        with pytest.raises(UserError, match="another process is training this run"):
            Run(tmp_path).lock()
        holder.kill()
    Run(tmp_path).lock()  # a process that was killed holds nothing
    Run(tmp_path).lock()  # one's own is none to wait for, and is kept
    other = subprocess.run(command, input=b"", capture_output=True)
    assert b"another process is training this run" in other.stderr


def test_only_a_run_without_results_is_discarded(tmp_path: Path) -> None:
    failed, logged = Run.create("name", tmp_path), Run.create("name", tmp_path)
    failed.make_current()
    (logged.folder / "metrics.csv").touch()
    failed.discard_if_untrained()
    logged.discard_if_untrained()
    assert not failed.folder.exists() and logged.folder.exists()
    assert Run.current() is None


def test_json_is_written_whole(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_json("a.json", {"b": 1})
    with pytest.raises(TypeError):
        run.write_json("a.json", {"b": object()})
    assert (tmp_path / "a.json").read_text() == '{\n  "b": 1\n}\n'


def test_a_class_is_found_by_its_path() -> None:
    assert import_class("project.runs.Run") is Run
