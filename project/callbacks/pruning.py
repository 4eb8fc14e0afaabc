"""End a sweep's trial that falls behind the others."""

import logging
import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from project.sweep.trial import Trial

log = logging.getLogger("project")


class Pruning(Callback):
    """Reports the sweep's metric after each epoch that validates, and stops the training if the study's pruner says so.

    Of several validations in an epoch the first counts.

    Args:
        trial: that this process trains.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.pruned = False
        self._study: Any = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        behind = trainer.strategy.broadcast(trainer.is_global_zero and self._report(trainer))
        if behind:
            self.pruned = trainer.should_stop = True
            log.info(f"pruned after epoch {trainer.current_epoch + 1}: other trials were better by then")

    def _report(self, trainer: Trainer) -> bool:
        """On rank zero alone. Whether the trial is to end."""
        import optuna

        from project.sweep.study import open_storage, pruner

        if self._study is None:
            storage, sampler = open_storage(self.trial.storage), optuna.samplers.RandomSampler()
            self._study = optuna.load_study(study_name=self.trial.study, storage=storage, sampler=sampler)
            self._space = self._study.user_attrs["common"]["space"]
            self._study.pruner = pruner(self._space)
            self._trial = optuna.trial.Trial(self._study, self._study.trials[self.trial.number]._trial_id)
        value = trainer.callback_metrics.get(self._space["metric"]["name"])
        epoch = trainer.current_epoch + 1
        reported = self._study.trials[self.trial.number].intermediate_values  # also before a stop
        if value is None or math.isnan(value) or epoch in reported:
            return False
        self._trial.report(value.item(), epoch)
        if not self._trial.should_prune():
            return False
        self._study.tell(self.trial.number, state=optuna.trial.TrialState.PRUNED)
        return True
