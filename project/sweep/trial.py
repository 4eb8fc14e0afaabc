"""What a process knows of the trial it trains: its place in a study, handed down in the environment."""

import json
import os
from dataclasses import asdict, dataclass

ENVIRONMENT_VARIABLE = "PROJECT_TRIAL"


@dataclass(frozen=True)
class Trial:
    """
    Args:
        storage: of the study, as `project.sweep.study.open_storage` takes it.
        study: its name.
        number: of the trial in the study.
        prunable: whether this training decides if the trial ends early: the first of several seeds.
    """

    storage: str
    study: str
    number: int
    prunable: bool

    def environment(self) -> dict[str, str]:
        return {ENVIRONMENT_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def current(cls) -> "Trial | None":
        value = os.environ.get(ENVIRONMENT_VARIABLE)
        return cls(**json.loads(value)) if value else None


def in_sweep() -> bool:
    """Whether this process trains one run of many, started by `python -m project sweep` or by W&B's agent."""
    return ENVIRONMENT_VARIABLE in os.environ or "WANDB_SWEEP_ID" in os.environ
