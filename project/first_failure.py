"""Of several processes, the one that failed first says why; what the others then meet is only its consequence."""

import os
import re
import signal
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from project.errors import ElsewhereError, Interrupted, UserError


def give_way_to_first_failure(error: Exception, trainer: Trainer) -> None:
    """End the processes that were started from here, whatever they wait for.

    Raises:
        ElsewhereError: another process failed before this one.
    """
    if trainer.world_size == 1 or not dist.is_initialized() or isinstance(error, Interrupted):
        return
    what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    lost = isinstance(error, dist.DistError) or bool(re.search("gloo.*Connection|NCCL.*remote process", what))
    if lost:
        what = "another process has ended without a word, as one that is killed for want of memory"
    try:
        store: Any = dist.distributed_c10d._get_default_store()
        first = store.compare_set("first failure", "", f"process {trainer.global_rank}: {what}").decode()
    except dist.DistError:  # the process that kept the store has ended
        first = "process 0 has ended"
    if isinstance(launcher := trainer.strategy.launcher, _SubprocessScriptLauncher):
        launcher.kill(signal.SIGKILL)
    if lost or not first.endswith(what):
        raise ElsewhereError(what if first.endswith(what) else first)


def report_to_torchrun(error: BaseException) -> None:
    """Let torchrun show the cause in its account of what failed, which comes last."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def refuse_nameless_run() -> None:
    """
    Raises:
        UserError: processes that torchrun or srun has started would each make a folder of its own.
    """
    if int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1) > 1:
        raise UserError(
            "processes of torchrun and SLURM must be told of one folder: give --run runs/<name>/<id> --ckpt_path auto"
        )
