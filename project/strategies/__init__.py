"""Lightning strategies for networks that one process does not hold alone."""

from project.strategies.model_parallel import ModelParallel
from project.strategies.pipeline import Pipeline

__all__ = ["ModelParallel", "Pipeline"]
