"""The schema of the configurations: all that ship are valid, and what the command line would refuse is not."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from project.__main__ import main
from project.schema import PACKAGE
from tests.e2e.conftest import ROOT

CONFIGS = [file for file in sorted((ROOT / "configs").rglob("*.yaml")) if file.parent.name != "sweep"]  # W&B's format


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("schema") / "schema.json"
    assert main(["schema", "--output", str(file)]) == 0
    made: dict[str, Any] = json.loads(file.read_text())
    Draft7Validator.check_schema(made)
    return made


def is_valid(schema: dict[str, Any], text: str) -> bool:
    return Draft7Validator(schema).is_valid(yaml.safe_load(text.replace("PACKAGE", PACKAGE)))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_configuration_is_valid(schema: dict[str, Any], file: Path) -> None:
    assert is_valid(schema, file.read_text())


ENCODER = "model: {class_path: PACKAGE.tasks.SequenceClassification, init_args: {encoder: %s}}"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("name: a", "nam: a"),
        ("trainer: {max_epochs: 3}", "trainer: {max_epoch: 3}"),
        ("trainer: {max_epochs: 3}", "trainer: {max_epochs: three}"),
        ("trainer: {max_epochs: null}", "trainer: {max_epochs: 3.5}"),
        ("trainer: {gradient_clip_val: 1}", "trainer: {gradient_clip_val: [1]}"),
        ("model: {init_args: {pooling: max}}", "model: {init_args: {pooling: median}}"),
        ("model: {init_args: {mask_share: 0.3}}", "model: {init_args: {mask_shar: 0.3}}"),
        (ENCODER % "{init_args: {d_model: 8}}", ENCODER % "{init_args: {d_modl: 8}}"),
        (ENCODER % "{class_path: PACKAGE.nn.Encoder}", ENCODER % "{class_path: PACKAGE.nn.Encodr}"),
        (ENCODER % "PACKAGE.nn.Encoder", ENCODER % "PACKAGE.nn.Encodr"),
        (
            ENCODER % "{class_path: PACKAGE.nn.Encoder, init_args: {num_layers: 2}}",
            ENCODER % "{class_path: PACKAGE.nn.Encoder, init_args: {num_layers: two}}",
        ),
        (
            "model: {init_args: {optimizer: {class_path: torch.optim.AdamW, init_args: {betas: [0.9, 0.99]}}}}",
            "model: {init_args: {optimizer: {class_path: torch.optim.AdamW, init_args: {lr: fast}}}}",
        ),
        (
            "model: {init_args: {optimizer: {class_path: torch.optim.SGD, init_args: {momentum: 0.9}}}}",
            "model: {init_args: {optimizer: {class_path: torch.optim.SGD, init_args: {params: []}}}}",
        ),
        (
            "trainer: {callbacks+: [{class_path: PACKAGE.callbacks.GradientMonitor, init_args: {every_n_steps: 5}}]}",
            "trainer: {callbacks+: [{class_path: PACKAGE.callbacks.GradientMonitor, init_args: {every_steps: 5}}]}",
        ),
        (
            "model: {class_path: PACKAGE.tasks.MaskedLanguageModeling, init_args: {mask_share: 0.2}}",
            "model: {class_path: PACKAGE.tasks.SequenceClassification, init_args: {mask_share: 0.2}}",
        ),
        ("data: {class_path: mine.Data, init_args: {any: thing}}", "data: {class_pat: mine.Data}"),
        (ENCODER % "{class_path: PACKAGE.nn.encoder.Encoder}", ENCODER % "{class_path: 3}"),
    ],
)
def test_a_mistake_is_found(schema: dict[str, Any], right: str, wrong: str) -> None:
    assert is_valid(schema, right)
    assert not is_valid(schema, wrong)


def test_it_says_what_an_editor_shows(schema: dict[str, Any]) -> None:
    trainer = schema["properties"]["trainer"]["properties"]
    assert "gradients" in trainer["gradient_clip_val"]["description"]
    position = schema["$defs"][f"{PACKAGE}.nn.Encoder"]["properties"]["position"]
    assert position["enum"] == ["sinusoidal", "learned", "rotary", "none"]
    assert position["default"] == "sinusoidal"
    assert "place" in position["description"]
    (tasks,) = [part["enum"] for part in schema["$defs"]["LightningModule"]["anyOf"][0]["anyOf"] if "enum" in part]
    assert {f"{PACKAGE}.tasks.SequenceClassification", f"{PACKAGE}.tasks.MaskedLanguageModeling"} <= set(tasks)


def test_a_folder_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["schema", "--output", str(tmp_path / "none" / "schema.json")]) == 1
    assert capsys.readouterr().err == f"error: cannot write {tmp_path}/none/schema.json: No such file or directory\n"
