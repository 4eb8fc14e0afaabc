"""Callbacks, one concern a file."""

from project.callbacks.activation_monitor import ActivationMonitor
from project.callbacks.equal_batches import EqualBatches
from project.callbacks.export import Export
from project.callbacks.gradient_monitor import GradientMonitor
from project.callbacks.gradual_unfreezing import GradualUnfreezing
from project.callbacks.last_checkpoint import LastCheckpoint
from project.callbacks.monitor_check import MonitorCheck
from project.callbacks.nan_guard import NanGuard
from project.callbacks.progress import Progress
from project.callbacks.pruning import Pruning
from project.callbacks.resume import Resume
from project.callbacks.run_record import RunRecord
from project.callbacks.skip_spikes import SkipSpikes
from project.callbacks.test_report import TestReport
from project.callbacks.throughput import Throughput
from project.callbacks.unused_parameters import UnusedParameters
from project.callbacks.update_monitor import UpdateMonitor

__all__ = [
    "ActivationMonitor",
    "EqualBatches",
    "Export",
    "GradientMonitor",
    "GradualUnfreezing",
    "LastCheckpoint",
    "MonitorCheck",
    "NanGuard",
    "Progress",
    "Pruning",
    "Resume",
    "RunRecord",
    "SkipSpikes",
    "TestReport",
    "Throughput",
    "UnusedParameters",
    "UpdateMonitor",
]
