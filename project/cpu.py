"""What a CPU can do that torch does not ask of it by itself. Results stay the same to rounding."""

import ctypes

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)


def use_cpu_well() -> None:
    keep_freed_memory()
    multiply_in_onednn()


def keep_freed_memory() -> None:
    """On a CPU, glibc hands large blocks back to the system after every step, and faults them in again in the next:
    about a tenth of a step. Peak memory stays the same. Without glibc nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    if mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 1 << 25):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def multiply_in_onednn() -> None:
    """Let oneDNN multiply float32 matrices, as it does bfloat16 ones, unless it would round them.

    On AMD processors MKL, which torch asks otherwise, uses half of the width of AVX-512. Torch lets oneDNN in only with
    the permission to round to bfloat16, of which it makes use where there is AMX; there all stays as it was.
    """
    if torch.cuda.is_available():  # the setting would reach its products too
        return
    torch.set_float32_matmul_precision("medium")
    x = torch.full((256, 256), 1 + 2**-12)  # bfloat16 would make it 1
    if not torch.allclose(x @ x, torch.tensor(256 * (1 + 2**-12) ** 2), rtol=1e-6):
        torch.set_float32_matmul_precision("highest")
