"""Tasks: LightningModules, one objective per file, on one shared base."""

from project.tasks.base import Task
from project.tasks.classification import SequenceClassification
from project.tasks.masked_lm import MaskedLanguageModeling

__all__ = ["MaskedLanguageModeling", "SequenceClassification", "Task"]
