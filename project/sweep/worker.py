"""What one process does in a sweep: take a trial, train it once a seed, tell the mean; until there are enough."""

import csv
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from optuna.trial import TrialState

from project.errors import UserError, nearest
from project.files import write_whole
from project.runs import Run
from project.sweep.process import run_fit
from project.sweep.space import Space, words
from project.sweep.study import Claim, claim_trial, locked
from project.sweep.trial import Trial

log = logging.getLogger("project")

FAILURES_IN_A_ROW = 3


@dataclass(frozen=True)
class Worker:
    """One of any number of processes that work on a study.

    Args:
        options: of `fit`, the same in all trials.
        seeds: one training each; None is the configuration's own.
        folder: of the sweep, beside those of its runs.
        storage: of the study.
    """

    space: Space
    study: optuna.Study
    options: Sequence[str]
    seeds: Sequence[int | None]
    folder: Path
    storage: str

    def work(self, count: int) -> None:
        """Train until the study has `count` trials.

        Raises:
            UserError: several trials in a row failed, or the metric is not logged.
            Interrupted: by a signal. What is under way goes on when the sweep does.
        """
        failures = 0
        while (claim := claim_trial(self.study, self.folder, self.space, count)) is not None:
            with claim.lock:
                failures = 0 if self.train(claim) else failures + 1
            if failures == FAILURES_IN_A_ROW:
                raise UserError(f"{failures} trials in a row failed, the last in {self.run(claim.number, 0).folder}")

    def run(self, number: int, repeat: int) -> Run:
        """That of a trial and one of the seeds, whether or not it has begun. Its id tells sweeps of one name apart."""
        seed = "" if self.seeds[repeat] is None else f"-seed{self.seeds[repeat]}"
        return Run(self.folder.parent / f"{self.study.user_attrs['begun']}-{self.space.name}-{number:03}{seed}")

    def train(self, claim: Claim) -> bool:
        """Whether the trial came to a value, or was pruned on its way."""
        log.info(f"trial {claim.number}: {'  '.join(f'{k} {short(v)}' for k, v in claim.parameters.items())}")
        values = []
        for repeat, seed in enumerate(self.seeds):
            run = self.run(claim.number, repeat)
            if not (run.folder / "metrics.json").exists():
                seeding = [] if seed is None else [f"--seed_everything={seed}"]
                options = [*self.options, *words(claim.parameters), *seeding]
                options += ["--run", str(run.folder), "--ckpt_path", "auto"]
                trial = Trial(self.storage, self.study.study_name, claim.number, prunable=repeat == 0)
                group = {"WANDB_RUN_GROUP": self.space.name}
                code = run_fit(options, trial.environment() | group, claim.lock)
                if self.study.trials[claim.number].state == TrialState.PRUNED:
                    return True
                if code != 0:
                    self.study.tell(claim.number, state=TrialState.FAIL)
                    log.warning(f"trial {claim.number} failed with exit code {code}")
                    return False
            try:
                values.append(best_value(run, self.space))
            except UserError:
                self.study.tell(claim.number, state=TrialState.FAIL)
                raise
        self.study.tell(claim.number, mean(values))
        with locked(self.folder):
            best = self.write_best()
        log.info(f"trial {claim.number}: {self.space.metric} {mean(values):.4f}; best: trial {best}")
        return True

    def write_best(self) -> int:
        """``best.yaml``: the configuration of the best trial, as `fit --config` takes it."""
        best = self.study.best_trial
        file = self.folder / "best.yaml"
        title = f"# Trial {best.number} of the sweep {self.space.name}: {self.space.metric} {best.value:.6g}"
        several = f", the mean of {len(self.seeds)} seeds, of which this is the first" if len(self.seeds) > 1 else ""
        write_whole(file, f"{title}{several}\n{self.run(best.number, 0).config_file.read_text(encoding='utf-8')}")
        return best.number


def best_value(run: Run, space: Space) -> float:
    """The best of all values that a run logged of the sweep's metric.

    Raises:
        UserError: it logged none.
    """
    with (run.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    values = [float(row[space.metric]) for row in rows if row.get(space.metric)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        logged = sorted(rows[0]) if rows else []
        meant = nearest(space.metric, logged, 0.0)
        hint = f"; did you mean {meant}?" if meant else ""
        raise UserError(f"{run.folder} logged no finite {space.metric}, the sweep's metric{hint}")
    return max(finite) if space.goal == "maximize" else min(finite)


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
