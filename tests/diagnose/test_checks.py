"""Each check finds the fault it is for, says so, and says what to do; the healthy pairs raise none."""

from typing import Any

import pytest

from project.diagnose import CHECKS, diagnose
from tests.diagnose import faults

OPTIONS = {"accelerator": "cpu", "max_epochs": 5}

# check: model, data, status, what the line has to say
CASES: dict[str, tuple[Any, Any, str, str]] = {
    "split-overlap": (faults.Classifier, faults.TestRowsInTrain, "failure", "32 in train and test"),
    "label-balance": (faults.Classifier, faults.SortedLabels, "failure", "holds 1.0 of 4 classes"),
    "padding-share": (faults.Classifier, faults.MostlyPadding, "warning", "are padding, by mask"),
    "unknown-tokens": (faults.Classifier, faults.UnknownWords, "failure", "of tokens are unknown"),
    "decoded-batch": (faults.Convolutions, faults.BrokenNumbers, "failure", "0 holds values that are not finite"),
    "same-batch-twice": (faults.Classifier, faults.RandomReading, "failure", "val read twice differ in 0"),
    "initial-loss": (faults.LargeHead, faults.Markers, "failure", "expected 1.386, ln(4)"),
    "gradients": (faults.UnusedParameter, faults.Markers, "failure", "forgotten.weight, forgotten.bias"),
    "zero-grad": (faults.ForgottenZeroGrad, faults.Markers, "failure", "gradients add up"),
    "batch-independence": (faults.MixedHeads, faults.Markers, "failure", "beginning in attention"),
    "padding-independence": (faults.PooledPadding, faults.Markers, "failure", "beginning in head"),
    "token-order": (faults.NoPositions, faults.Order, "warning", "the same for tokens in reverse order"),
    "eval-deterministic": (faults.DropoutInEvaluation, faults.Markers, "failure", "head gives another output"),
    "train-eval-difference": (faults.OtherPathInEvaluation, faults.Markers, "failure", "head gives in evaluation"),
    "overfit": (faults.SoftmaxBeforeCrossEntropy, faults.Markers, "failure", "cannot be learned by heart"),
    "shuffled-labels": (faults.Classifier, faults.ShuffledLabels, "failure", "with shuffled labels"),
    "activations": (faults.DeadReLU, faults.Markers, "failure", "dead units: feed_forward.1.relu 100%"),
    "gradient-ratio": (faults.VanishingSigmoid, faults.Markers, "failure", "times that of head"),
    "update-ratio": (faults.ZeroRate, faults.Markers, "failure", "no weight moves"),
    "precision": (faults.Cancellation, faults.Markers, "failure", "losses in bf16-mixed and 32-true differ"),
    "schedule": (faults.EndlessWarmup, faults.Markers, "failure", "peak 2.4e-07"),
    "learning-rate": (faults.HugeRate, faults.Markers, "failure", "configured 30"),
}


@pytest.mark.parametrize("check", CASES)
def test_a_fault_is_found(check: str) -> None:
    model, data, status, seen = CASES[check]
    options = OPTIONS | ({"precision": "bf16-mixed"} if check == "precision" else {})
    (result,) = diagnose(model(), data(), only=[check], trainer_options=options)
    assert (result.check, result.status) == (check, status), result.seen
    assert seen in result.seen and result.advice


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
def test_healthy_strangers_pass(model: Any, data: Any) -> None:
    checks = [name for name in CHECKS if name not in ("loader-speed", "workers")]  # no timing in tests
    results = diagnose(model(), data(), only=checks, trainer_options=OPTIONS)
    assert [(result.check, result.seen) for result in results if result.status != "pass"] == []
