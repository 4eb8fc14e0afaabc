"""Errors of the command line: the key, the cause, the nearest name, in at most ten lines."""

import pytest

from project.parser import explain

UNION = """Parser key "trainer.max_epochs":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'int'>, <class 'NoneType'>]
  Errors:
    - Expected a <class 'int'>
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: x"""

NESTED = """Parser key "model":
  Does not validate against any of the Union subtypes
  Errors:
    - Parser key "encoder":
      Problem with given class_path 'project.nn.Encoder':
        Option 'd_modl' is not accepted
    - Expected a <class 'NoneType'>"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (UNION, "trainer.max_epochs: expected int, got x"),
        ('Parser key "config": File does not exist: nope.yaml', "config: File does not exist: nope.yaml"),
        (
            "unrecognized arguments: --trainer.max_epoch 1",
            "unrecognized arguments: --trainer.max_epoch 1\ndid you mean --trainer.max_epochs?",
        ),
        ("plain", "plain"),
    ],
)
def test_the_cause_comes_first(message: str, expected: str) -> None:
    assert explain(message, ["--trainer.max_epochs", "--trainer.devices"]) == expected


def test_a_nested_typo_names_the_key_and_the_nearest_parameter() -> None:
    text = explain(NESTED)
    assert text.startswith("model.encoder: ")
    assert "Option 'd_modl' is not accepted" in text
    assert text.endswith("did you mean d_model?")


def test_a_wrong_class_name_gets_the_nearest_of_its_module() -> None:
    text = explain("Problem with given class_path 'project.nn.Encodr':")
    assert text.endswith("did you mean Encoder?")


@pytest.mark.parametrize(
    ("message", "ending"),
    [
        ("unrecognized arguments: --trainer.max_ep 2", "did you mean --trainer.max_epochs?"),
        ("Subcommand 'fit' does not accept option 'trainer.max_epoch'", "did you mean trainer.max_epochs?"),
        ("Subcommand 'fit' does not accept option 'trainr'", "did you mean trainer?"),
        ("Expected a path but X either not\n- module 'torch.optim' has no attribute 'AdamX'", "did you mean Adam?"),
        ("the following arguments are required: fit.model", "--config configs/classify.yaml"),
    ],
)
def test_the_nearest_name_of_every_kind(message: str, ending: str) -> None:
    options = ["--trainer", "--trainer.max_steps", "--trainer.max_epochs", "--trainer.max_epochs+", "--model"]
    assert explain(message, options).endswith(ending)


def test_the_cause_stands_before_what_else_a_value_could_have_been() -> None:
    assert explain("Expected a path but X\nmodule 'torch.optim' has no attribute 'AdamX'").startswith("module")
