"""Which of several processes this is, before there is a Trainer to ask; then it is `trainer.is_global_zero`."""

import os


def is_first() -> bool:
    """Whether it is the first or the only one, by what torchrun, Lightning's launcher or SLURM has set."""
    given = os.environ
    if "RANK" in given:
        return given["RANK"] == "0"
    if "LOCAL_RANK" in given or "NODE_RANK" in given:
        return given.get("LOCAL_RANK", "0") == given.get("NODE_RANK", "0") == "0"
    return given.get("SLURM_PROCID", "0") == "0"  # last, since an interactive job sets it for all that it starts
