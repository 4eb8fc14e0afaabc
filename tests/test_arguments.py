"""What a command line stands for, before it is parsed."""

from pathlib import Path

import pytest
import yaml

from project.arguments import flatten, overridden, read_configs


def test_configurations_are_read_in_the_order_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        Path(f"{name}.yaml").write_text(yaml.safe_dump({"seed": number}))
    words = ["fit", "--config=c.yaml", "--config", "a.yaml", "--trainer.devices", "1", "-c", "b.yaml", "--config"]
    files = [("c.yaml", {"seed": 2}), ("a.yaml", {"seed": 0}), ("b.yaml", {"seed": 1})]
    assert read_configs(words) == files
    assert overridden(files, {"seed": 1}) == ["override: seed: 2 (c.yaml) -> 1", "override: seed: 0 (a.yaml) -> 1"]


def test_values_have_the_names_that_a_command_line_gives_them() -> None:
    inner = {"class_path": "Encoder", "init_args": {"d_model": 8}}
    config = {"model": {"class_path": "Task", "init_args": {"encoder": inner}}, "tags": ["a"], "seed": 0}
    assert flatten(config) == {
        "model.class_path": "Task",
        "model.encoder.class_path": "Encoder",
        "model.encoder.d_model": 8,
        "tags": ["a"],
        "seed": 0,
    }
