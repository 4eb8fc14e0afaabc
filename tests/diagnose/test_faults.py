"""Every planted fault is found by the check that is for it, which says what to do; no other check is misled."""

import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from torch.utils.data import DataLoader

from project.diagnose import CHECKS, diagnose
from project.diagnose import data as checks
from tests.diagnose import faults

OPTIONS = {"accelerator": "cpu", "max_epochs": 5}
UNTIMED = [check for check in CHECKS if check not in ("loader-speed", "workers")]  # no timing in tests


class Found(NamedTuple):
    """What is said of a fault.

    Args:
        check: that has to name it.
        seen: what its line holds.
        status: of that line.
        besides: other checks that fail or warn, as the fault's consequences.
    """

    check: str
    seen: str
    status: str = "failure"
    besides: frozenset[str] = frozenset()


def besides(*checks: str) -> frozenset[str]:
    return frozenset(checks)


UNTRAINED = besides("overfit", "shuffled-labels", "update-ratio", "learning-rate")

DATA: dict[type[faults.Markers], Found] = {
    faults.ShuffledLabels: Found("shuffled-labels", "with shuffled labels"),
    faults.TestRowsInTrain: Found("split-overlap", "32 in train and test"),
    faults.SortedLabels: Found("label-balance", "holds 1.0 of 4 classes", besides=besides("shuffled-labels")),
    faults.OneClass: Found("label-balance", "all 512 .* have the label 2", besides=besides("shuffled-labels")),
    faults.LabelsOffByOne: Found("initial-loss", "Target 4 is out of bounds", besides=frozenset(CHECKS)),
    faults.ConstantInputs: Found("shuffled-labels", "with shuffled labels", besides=besides("learning-rate")),
    faults.RandomReading: Found("same-batch-twice", "val read twice differ in 0"),
    faults.MostlyPadding: Found("padding-share", "are padding, by mask", "warning"),
    faults.UnknownWords: Found("unknown-tokens", "of tokens are unknown", besides=besides("split-overlap")),
}

MODELS: dict[type[faults.Classifier], Found] = {
    faults.SoftmaxBeforeCrossEntropy: Found("overfit", "cannot be learned by heart"),
    faults.ForgottenZeroGrad: Found("zero-grad", "gradients add up"),
    faults.FrozenLayer: Found("gradients", "frozen: attention.qkv.weight", "warning"),
    faults.UnusedParameter: Found("gradients", "forgotten.weight, forgotten.bias", besides=besides("update-ratio")),
    faults.DetachedEncoder: Found("gradients", "without gradient: embedding.weight", besides=UNTRAINED),
    faults.OptimizerWithoutEncoder: Found("gradients", "in no optimizer: embedding.weight", besides=UNTRAINED),
    faults.InvertedMask: Found("padding-independence", "beginning in attention"),
    faults.NoMask: Found("padding-independence", "beginning in attention"),
    faults.PooledPadding: Found("padding-independence", "beginning in head"),
    faults.WrongPaddingId: Found("padding-independence", "beginning in attention"),
    faults.SoftmaxOverBatch: Found("batch-independence", "in attention", besides=besides("padding-independence")),
    faults.BatchStatistics: Found("batch-independence", "beginning in head"),
    faults.MixedHeads: Found("batch-independence", "in attention", besides=besides("padding-independence")),
    faults.NoPositions: Found("token-order", "in reverse order", "warning", besides("shuffled-labels")),
    faults.DropoutInEvaluation: Found("eval-deterministic", "head gives", besides=besides("train-eval-difference")),
    faults.OtherPathInEvaluation: Found("train-eval-difference", "head gives in evaluation"),
    faults.ExplodingInitialisation: Found("activations", "activations explode", besides=besides("initial-loss")),
    faults.VanishingSigmoid: Found("gradient-ratio", "times that of head", besides=UNTRAINED | {"token-order"}),
    faults.DeadReLU: Found("activations", "dead units: feed_forward.1.relu 100%", besides=besides("gradients")),
    faults.SaturatedTanh: Found("activations", "saturated units: squash.tanh 100%", besides=besides("overfit")),
    faults.LargeHead: Found("initial-loss", r"expected 1.386, ln\(4\)"),
    faults.ZeroRate: Found("update-ratio", "no weight moves", besides=UNTRAINED | {"schedule"}),
    faults.HugeRate: Found(
        "learning-rate", "configured 30", besides=besides("activations", "precision", "clipping", "update-ratio")
    ),
    faults.TinyRate: Found("overfit", "at rate 3e-07 .* but at", besides=UNTRAINED),
    faults.EndlessWarmup: Found("schedule", "peak 2.4e-07"),
    faults.LogOfZero: Found(
        "initial-loss",
        "the first loss is inf",
        besides=UNTRAINED | {"gradients", "activations", "gradient-ratio", "precision", "clipping"},
    ),
    faults.SummedLoss: Found("initial-loss", r"expected 1.386, ln\(4\)"),
    faults.Cancellation: Found("precision", "bf16-mixed and 32-true differ", "warning"),
    faults.NoLearningFromLabels: Found("shuffled-labels", "does not depend on the labels"),
}

FAULTS: dict[type[Any], Found] = {**DATA, **MODELS}


def pair(fault: Any) -> tuple[Any, Any]:
    if fault in DATA:
        return faults.Classifier(), fault()
    return fault(), faults.Order() if fault is faults.NoPositions else faults.Markers()


def name(fault: type[Any]) -> str:
    return fault.__name__


@pytest.mark.parametrize("fault", FAULTS, ids=name)
def test_a_fault_is_found(fault: type[Any]) -> None:
    found = FAULTS[fault]
    (result,) = diagnose(*pair(fault), only=[found.check], trainer_options=OPTIONS)
    assert (result.check, result.status) == (found.check, found.status), result.seen
    assert re.search(found.seen, result.seen) and result.advice


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=name)
def test_no_other_check_is_misled(fault: type[Any]) -> None:
    found = FAULTS[fault]
    results = diagnose(*pair(fault), only=UNTIMED, trainer_options=OPTIONS)
    not_passed = {result.check: result.seen for result in results if result.status != "pass"}
    assert found.check in not_passed
    assert {check: seen for check, seen in not_passed.items() if check not in {found.check, *found.besides}} == {}


def test_features_that_are_not_finite() -> None:
    data = faults.BrokenNumbers()
    (result,) = diagnose(faults.Convolutions(), data, only=["decoded-batch"], trainer_options=OPTIONS)
    assert result.status == "failure" and "0 holds values that are not finite" in result.seen


def test_half_precision_in_use_makes_a_failure_of_the_warning() -> None:
    options = OPTIONS | {"precision": "bf16-mixed"}
    (result,) = diagnose(faults.Cancellation(), faults.Markers(), only=["precision"], trainer_options=options)
    assert result.status == "failure" and "losses in bf16-mixed and 32-true differ" in result.seen


def test_clipping_that_scales_every_step_is_said() -> None:
    options = OPTIONS | {"gradient_clip_val": 1e-4}
    (result,) = diagnose(faults.Classifier(), faults.Markers(), only=["clipping"], trainer_options=options)
    assert result.status == "warning" and "is active in" in result.seen and "raise" in result.advice


@pytest.mark.parametrize("check", ["memory", "batch-size"])
def test_a_memory_limit_that_is_too_small(check: str) -> None:
    given = {"only": [check], "trainer_options": OPTIONS, "memory_limit": 1e4}
    (result,) = diagnose(faults.Classifier(), faults.Markers(), **given)  # type: ignore[arg-type]
    assert result.status == "failure" and "batches smaller" in result.advice


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (faults.Classifier, faults.Markers),
        (faults.Classifier, faults.Order),
        (faults.Convolutions, faults.Images),
        (faults.Recurrent, faults.Waves),
    ],
)
def test_healthy_pairs_pass_every_check(model: Any, data: Any) -> None:
    results = diagnose(model(), data(), only=UNTIMED, trainer_options=OPTIONS)
    assert [(result.check, result.seen) for result in results if result.status != "pass"] == []


class Slow(NamedTuple):
    """What the checks of speed ask of a subject: tokens a second of the model, and of the loader by its workers."""

    speed: float
    rates: dict[int, float]

    @property
    def surveyed(self) -> dict[str, Any]:
        return {"train": SimpleNamespace(real=int(self.rates[0]), examples=1, seconds=1.0)}

    def loader(self, split: str) -> DataLoader[Any]:
        return DataLoader([0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rates", "speed", "expected", "seen"),
    [
        ({0: 100.0, 1: 120.0, 2: 400.0}, 90.0, ("warning", "warning"), "set num_workers 2"),
        ({0: 100.0, 1: 120.0, 2: 130.0}, 90.0, ("warning", "pass"), ""),
        ({0: 1000.0, 1: 9000.0, 2: 9000.0}, 90.0, ("pass", "pass"), ""),
    ],
)
def test_a_loader_slower_than_the_model_and_the_workers_that_help(
    rates: dict[int, float],
    speed: float,
    expected: tuple[str, str],
    seen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "measure", lambda loader, subject: rates[loader.num_workers])
    slow: Any = Slow(speed, rates)
    loader, workers = checks.loader_speed(slow), checks.workers(slow)
    assert loader is not None and workers is not None
    assert (loader.status, workers.status) == expected
    assert workers.advice == seen


def test_each_check_has_a_fault() -> None:
    planted = {found.check for found in FAULTS.values()} | {"decoded-batch", "clipping", "memory", "batch-size"}
    assert planted == set(UNTIMED)
