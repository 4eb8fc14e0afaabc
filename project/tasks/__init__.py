"""Tasks: LightningModules, one objective per file, on one shared base."""

from project.tasks.base import Task
from project.tasks.classification import SequenceClassification

__all__ = ["SequenceClassification", "Task"]
