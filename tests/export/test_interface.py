"""What an artifact must not be called with is refused with the reason."""

import numpy as np
import pytest

from project.export.artifacts import Array
from project.export.interface import Input, Interface

INTERFACE = Interface(
    [Input("tokens", "int64", ["batch", "sequence"], 10), Input("padding_mask", "bool", ["batch", "sequence"])],
    ["logits"],
    {"sequence": 4},
)


def arrays(batch: int = 2, sequence: int = 3, high: int = 9) -> list[Array]:
    return [np.full((batch, sequence), high), np.ones((batch, sequence), bool)]


def test_accepts_what_fits() -> None:
    INTERFACE.check(arrays())
    INTERFACE.check(arrays(1, 1, 0))
    INTERFACE.check(arrays(500, 4))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (arrays()[:1], "2 inputs wanted, got 1"),
        ([arrays()[0].astype(np.int32), arrays()[1]], "tokens must be int64, got int32"),
        ([arrays()[0][0], arrays()[1]], "tokens must have 2 dimensions, got 1"),
        (arrays(sequence=5), "tokens: dimension sequence must be at most 4, got 5"),
        ([arrays()[0], arrays(batch=3)[1]], "padding_mask: dimension batch must be 2, got 3"),
        (arrays(batch=0), "tokens: dimension batch must be 1, got 0"),
        (arrays(high=10), r"tokens must lie in \[0, 10\), got 10 to 10"),
        (arrays(high=-1), r"tokens must lie in \[0, 10\), got -1 to -1"),
    ],
)
def test_refuses(inputs: list[Array], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        INTERFACE.check(inputs)


def test_fixed_dimension() -> None:
    interface = Interface([Input("features", "float32", ["batch", 5])], ["y"], {})
    interface.check([np.zeros((2, 5), np.float32)])
    with pytest.raises(ValueError, match="features: dimension 5 must be 5, got 4"):
        interface.check([np.zeros((2, 4), np.float32)])


def test_json_round_trip() -> None:
    assert Interface.from_json(INTERFACE.to_json()) == INTERFACE
