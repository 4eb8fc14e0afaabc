"""Configurations as dotted names, and the filters that name them."""

import pytest

from project.compare.settings import flatten, means, resolve
from project.errors import UserError
from tests.compare.conftest import config


def test_names_are_those_that_one_types() -> None:
    flat = flatten(config(64, 1, 0.002))
    assert flat["model"] == "project.tasks.SequenceClassification"
    assert flat["model.encoder"] == "project.nn.Encoder" and flat["model.encoder.d_model"] == 64
    assert flat["trainer.callbacks.ModelCheckpoint.monitor"] == "val/accuracy"
    assert flat["model.optimizer.betas"] == [0.9, 0.999]


def test_two_callbacks_of_one_class_stay_two() -> None:
    two = [{"class_path": "a.Save", "init_args": {"every": n}} for n in (1, 2)]
    assert flatten({"callbacks": two}) == {
        "callbacks.Save": "a.Save",
        "callbacks.Save.every": 1,
        "callbacks.Save'": "a.Save",
        "callbacks.Save'.every": 2,
    }


NAMES = ["model.encoder.d_model", "model.optimizer.lr", "data.seed", "data.split_seed", "model.encoder", "data.lr"]


@pytest.mark.parametrize(
    ("typed", "name"),
    [("model.d_model", NAMES[0]), ("d_model", NAMES[0]), ("model.lr", NAMES[1]), ("seed", NAMES[2])],
)
def test_a_name_may_leave_out_parts(typed: str, name: str) -> None:
    assert resolve(typed, NAMES) == name


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("lr", r"could mean data\.lr, model\.optimizer\.lr"),
        ("d_modle", "no run has a setting d_modle; did you mean d_model"),
        ("encoder.model.d_model", "no run has"),
        ("odel", "no run has"),
    ],
)
def test_what_names_none_or_several_is_refused(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(typed, NAMES)


@pytest.mark.parametrize(
    ("typed", "value"),
    [("256", 256), ("2e-3", 0.002), ("1", 1.0), ("null", None), ("true", True), ("[1, 2]", [1, 2]), ("a.B", "a.B")],
)
def test_a_typed_value_stands_for_what_yaml_would_make_of_it(typed: str, value: object) -> None:
    assert means(typed, value)
    assert not means("3", value) and not means("x", value)
