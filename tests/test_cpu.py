"""Faster products are still float32's."""

from collections.abc import Iterator

import pytest
import torch

from project.cpu import multiply_in_onednn


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("m", "k", "n"), [(3, 5, 7), (64, 64, 64), (1024, 256, 768)])
def test_products_are_float32(m: int, k: int, n: int) -> None:
    multiply_in_onednn()
    a, b = torch.randn(m, k, requires_grad=True), torch.randn(n, k, requires_grad=True)
    product = torch.nn.functional.linear(a, b)
    product.backward(upstream := torch.randn(m, n))
    for ours, exact in (
        (product, a.double() @ b.double().T),
        (a.grad, upstream.double() @ b.double()),
        (b.grad, upstream.double().T @ a.double()),
    ):
        assert ours is not None
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-3)  # bfloat16 is off by 0.01 and more
    batched = torch.bmm(a.detach().expand(4, m, k), b.detach().T.expand(4, k, n))
    torch.testing.assert_close(batched[3].double(), a.double() @ b.double().T, rtol=0, atol=1e-3)


def test_rounded_products_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    full = torch.full
    monkeypatch.setattr(torch, "full", lambda *size: full(*size).bfloat16().float())  # as AMX would
    multiply_in_onednn()
    assert torch.get_float32_matmul_precision() == "highest"
