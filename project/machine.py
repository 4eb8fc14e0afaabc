"""What the machine can do and what it has given: the rate of its fastest matrix product, the peak of memory."""

import resource
import sys
import time
from collections.abc import Callable, Sequence

import torch

Size = tuple[int, int, int]
SIZES = {"cpu": [(2048, 2048, 2048), (4096, 256, 1024), (4096, 1024, 256)], "cuda": [(8192, 8192, 8192)]}


def matmul_peak(dtype: torch.dtype, device: torch.device | str = "cpu", sizes: Sequence[Size] = ()) -> float:
    """FLOP/s of the fastest of several matrix products: what is compared with when a share of the peak is given.

    Args:
        sizes: (m, k, n) of each product of (m, k) and (k, n); default some that suit the kind of device.
    """
    device = torch.device(device)
    generator = torch.Generator(device).manual_seed(0)  # training's own random numbers stay as they are

    def rate(m: int, k: int, n: int) -> float:
        left = torch.randn(m, k, device=device, generator=generator).to(dtype)
        right = torch.randn(n, k, device=device, generator=generator).to(dtype).t()

        def product() -> None:
            torch.mm(left, right)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return 2 * m * k * n / fastest(product)

    return max(rate(*size) for size in sizes or SIZES.get(device.type, SIZES["cpu"]))


def fastest(function: Callable[[], object], for_seconds: float = 0.1) -> float:
    """Least wall time of a call that waits for its device, over calls that take some time together."""
    times: list[float] = []
    while len(times) < 5 or sum(times) < for_seconds:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_memory(device: torch.device) -> int:
    """Bytes: the most that torch has held on a GPU; elsewhere, that the process has had resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # of what getrusage counts in
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
