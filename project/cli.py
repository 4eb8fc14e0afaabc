"""fit, validate and test: Lightning's command line, with the run folder, strict options and one precedence.

What is typed beats a later --config, which beats an earlier one, which beats what a run or checkpoint remembers.
"""

import logging
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, ProgressBar, Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from torch import nn

from project.arguments import arguments_from_run, overridden, read_configs
from project.callbacks import (
    EqualBatches,
    LastCheckpoint,
    MonitorCheck,
    NanGuard,
    Progress,
    Pruning,
    Resume,
    RunRecord,
    TestReport,
    UnusedParameters,
)
from project.checkpoint_io import read_checkpoint
from project.cpu import use_cpu_well
from project.errors import UserError, first_line, one_line
from project.first_failure import give_way_to_first_failure, refuse_nameless_run, report_to_torchrun
from project.model_card import write_model_card
from project.out_of_memory import explained
from project.parser import Parser, explain
from project.rank import is_first
from project.runs import Run, is_checkpoint
from project.sweep.trial import Trial

log = logging.getLogger("project")


# Groups of options, in the order in which --help shows them, after the few general ones.
HELP_TITLES = {
    "model": "Model (all of a class: --model.help project.tasks.SequenceClassification)",
    "data": "Data (all of a class: --data.help project.data.TextClassificationData)",
    "trainer": "Trainer",
}


class ProjectCLI(LightningCLI):
    """Lightning's CLI plus: one folder per run, values linked from data to model, a test after fit."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "ProjectCLI":
        return self  # a model holds it through its optimizer's callable, and a copy of a model is none of the loggers

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--name", type=str, default="run", help="Name of the run: runs/<name>/<id>.")
        parser.add_argument("--runs_dir", type=str, default="runs", help="Folder of all runs.")
        parser.add_argument(
            "--weights",
            type=str | None,
            default=None,
            help="Begin with the weights of this run or checkpoint; optimizer, learning rate and counts start anew. "
            "To go on with a run, the learning rate where it was, use --run.",
        )
        parser.add_lightning_class_args(LastCheckpoint, "checkpoint")
        # Ignored by a data module without the attribute or a model without the parameter.
        parser.link_arguments("data.vocab_size", "model.init_args.vocab_size", apply_on="instantiate")
        parser.link_arguments("data.num_features", "model.init_args.num_features", apply_on="instantiate")
        parser.link_arguments("data.labels", "model.init_args.labels", apply_on="instantiate")
        parser.link_arguments("data.class_counts", "model.init_args.class_counts", apply_on="instantiate")

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        parser.set_defaults(weights_only=True)  # a checkpoint is data: nothing in it is executed
        parser.usage = f"python -m project {subcommand} --config FILE [options]"
        groups = parser.groups or {}
        for key, title in HELP_TITLES.items():
            groups[key].title = title
        order = [groups[key] for key in HELP_TITLES]
        parser._action_groups.sort(  # type: ignore[attr-defined]
            key=lambda group: order.index(group) if group in order else -1
        )
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        files = read_configs(args)
        self.config = parser.parse_args(args)
        if Trial.current() is None:  # whose sweep has said what is its own
            for line in overridden(files, self.config[self.config.subcommand].as_dict()):
                log.info(line)

    def _parse_ckpt_path(self) -> None:
        """Lightning would let the checkpoint's hyperparameters beat what was typed."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        if self.subcommand == "fit" and not config.trainer.fast_dev_run and Run.current() is None:
            refuse_nameless_run()
            Run.create(config.name, Path(config.runs_dir)).make_current()
        if self.subcommand != "fit":  # Lightning itself mutes the loggers under fast_dev_run
            config.trainer.logger = False
        if (run := Run.current()) is not None:
            if self.subcommand == "fit" and is_first():
                run.lock()
            config.trainer.default_root_dir = str(run.folder)
        self._take_pretrained_tokenizer(config)

    def _take_pretrained_tokenizer(self, config: Any) -> None:
        """Pretrained weights need the tokenizer they were trained with, unless another is named: that is compared."""
        pretrained = config.get("model.init_args.pretrained")
        if self.subcommand == "fit" and pretrained and config.get("data.init_args.tokenizer", "none") is None:
            config["data.init_args.tokenizer"] = str(Run.open(pretrained).folder)

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, OSError, MisconfigurationException) as error:
            raise UserError(explain(str(error))) from error
        check_lengths(self.model, self.datamodule)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        strategy: Any = trainer.strategy
        sharded = getattr(strategy, "_state_dict_type", None) == "sharded"  # FSDPStrategy's
        own = type(strategy).__module__.startswith("project.")
        if sharded or (getattr(strategy, "_save_distributed_checkpoint", False) and not own):  # ModelParallelStrategy's
            raise UserError(
                f"{type(strategy).__name__} would write checkpoints in pieces that may be left half written: give it "
                + ("state_dict_type full" if sharded else "save_distributed_checkpoint false")
                + ", or take project.strategies.ModelParallel"
            )
        run = Run.current()
        for callback in trainer.checkpoint_callbacks:
            if run is not None and isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(run.checkpoints)
        return trainer

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        if config.get("accumulate_grad_batches", 1) < 1:
            raise UserError(f"trainer.accumulate_grad_batches {config['accumulate_grad_batches']} must be 1 at least")
        idle = [key for key in ("max_epochs", "max_steps", "limit_train_batches") if config.get(key) == 0]
        if self.subcommand == "fit" and idle:
            raise UserError(f"trainer.{idle[0]} 0 trains nothing: give 1 at least; validate and test score a run")
        if config.get("enable_checkpointing") is False:
            callbacks = [callback for callback in callbacks if not isinstance(callback, LastCheckpoint)]
        if config.get("enable_progress_bar") is False:
            own = self.trainer_defaults["callbacks"]
            own[:] = [callback for callback in own if not isinstance(callback, ProgressBar)]
        if self.subcommand == "fit" and config.get("logger") in (False, []):
            for callback in [c for c in config.get("callbacks") or () if isinstance(c, LearningRateMonitor)]:
                log.info("LearningRateMonitor is left out: there is no logger that it could write to")
                config["callbacks"].remove(callback)
        try:
            return super()._instantiate_trainer(config, callbacks)
        except RuntimeError as error:  # Lightning's for an environment that does not fit, such as SLURM's
            raise UserError(str(error)) from error

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except Exception as error:
            told = explained(refusal(error), self.trainer)
            give_way_to_first_failure(told, self.trainer)
            if told is error:
                raise
            raise told from error

    def before_fit(self) -> None:
        config = self.config[self.subcommand]
        if config.ckpt_path:  # the weights of a run that goes on are its own
            if Path(config.ckpt_path).is_file() and self.model.state_dict():  # refused before its folder is touched
                self.model.on_load_checkpoint(read_checkpoint(Path(config.ckpt_path)))
        elif config.weights:
            path = Path(config.weights)
            checkpoint = read_checkpoint(path if is_checkpoint(path) else Run.open(path).checkpoint())
            self.model.on_load_checkpoint(checkpoint)
            self.model.load_state_dict(checkpoint["state_dict"])

    def after_fit(self) -> None:
        run = Run.current()
        best = next((c for c in self.trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)), None)
        pruned = any(isinstance(c, Pruning) and c.pruned for c in self.trainer.callbacks)  # type: ignore[attr-defined]
        if run is None or best is None or not best.best_model_path or pruned:
            return
        # Asked for now, since a test takes the timer back to its checkpoint.
        seconds = max(c.time_elapsed("train") for c in self.trainer.callbacks if isinstance(c, Timer))  # type: ignore[attr-defined]
        of_best: dict[str, Any] = {"ckpt_path": best.best_model_path, "weights_only": True, "verbose": False}
        scores = dict(self.trainer.test(self.model, datamodule=self.datamodule, **of_best)[0])
        if best.monitor and best.best_model_score is not None:
            scores[best.monitor] = best.best_model_score.item()
        if self.trainer.is_global_zero:
            run.write_json("metrics.json", scores)
            write_model_card(run)
            epoch = read_checkpoint(Path(best.best_model_path))["epoch"] + 1
            shown = "  ".join(f"{name} {score:.4f}" for name, score in scores.items())
            log.info(f"best checkpoint, of epoch {epoch}:  {shown}")
            log.info(f"trained in {seconds:.0f} s, run: {run.folder}")

    def after_validate(self) -> None:
        self._record_evaluation()

    def after_test(self) -> None:
        self._record_evaluation()

    def _record_evaluation(self) -> None:
        run = Run.current()
        if run is not None and self.trainer.is_global_zero:
            run.write_evaluation(str(self.subcommand), {k: v.item() for k, v in self.trainer.callback_metrics.items()})


class Parsing(ProjectCLI):
    """Ends when the command line is parsed: nothing is built, written or seeded."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        read_configs(args)
        self.config = parser.parse_args(args)

    def _set_seed(self) -> None: ...
    def _add_instantiators(self) -> None: ...
    def before_instantiate_classes(self) -> None: ...
    def instantiate_classes(self) -> None: ...
    def _run_subcommand(self, subcommand: str) -> None: ...


def refusal(error: Exception) -> Exception:
    """A `UserError` of one line where Lightning refuses a setting; any other error as it is."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    by_lightning = isinstance(error, ValueError) and frame.f_globals["__name__"].startswith("lightning.pytorch.")
    if by_lightning or isinstance(error, MisconfigurationException):
        return UserError(one_line(error))
    return error


def check_lengths(model: nn.Module, data: Any) -> None:
    """
    Raises:
        UserError: the data may hold a longer text than a part of the model has positions for.
    """
    longest = getattr(data, "max_length", None)
    bounds = [getattr(module, "max_length", None) for module in model.modules()]
    bound = min((bound for bound in bounds if isinstance(bound, int)), default=None)
    if isinstance(longest, int) and bound is not None and longest > bound:
        raise UserError(f"data.max_length {longest} is beyond the model's max_length {bound}: make them equal")


def default_precision() -> str:
    """bf16 where the processor multiplies it natively; elsewhere it would be emulated and slow."""
    if torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "16-mixed"
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16-mixed" if native else "32-true"


def quiet() -> None:
    """Leave on screen what the user can act on."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    log.handlers = [logging.StreamHandler(sys.stdout)]
    log.setLevel(logging.INFO if is_first() else logging.WARNING)
    log.propagate = False
    for message in (
        r"The '\w+' does not have many workers",  # num_workers is measured and set in the configuration
        r"Checkpoint directory .* exists and is not empty",  # the run's own folder
        r"The number of training batches \(\d+\) is smaller than the logging interval",
        r".*isinstance\(treespec, LeafSpec\).*",
        r".*in combination with multi-machine.*",
        r"torch.distributed is disabled, unavailable or uninitialized",  # one process reads what several have written
        r"You're using the WeightAveraging callback with a model that overrides",  # to shard it: that is refused
    ):
        warnings.filterwarnings("ignore", message)


def main(arguments: Sequence[str]) -> ProjectCLI:
    """Run one verb. Tests call this with the words of the command line.

    Raises:
        UserError: bad input, found before training started.
    """
    verb, *options = arguments
    quiet()
    use_cpu_well()
    before = Run.current()
    try:
        return command_line(ProjectCLI, [verb, *arguments_from_run(verb, options)])
    except BaseException as error:
        report_to_torchrun(error)
        finish_wandb()
        if before is None and (run := Run.current()) is not None:
            run.discard_if_untrained()
        raise
    finally:
        finish_wandb()
        if before is None:
            Run.end()


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """The whole configuration that a command line stands for.

    Raises:
        UserError: something in it does not exist or is of the wrong type.
    """
    config: dict[str, Any] = command_line(Parsing, arguments).config[arguments[0]].as_dict()
    return config


def command_line(cls: type[ProjectCLI], arguments: Sequence[str]) -> ProjectCLI:
    trial = Trial.current()
    return cls(
        save_config_callback=RunRecord,
        save_config_kwargs={"save_to_log_dir": False},
        subclass_mode_model=True,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        parser_class=Parser,
        parser_kwargs={"allow_abbrev": False},
        trainer_defaults={
            "callbacks": [
                Progress(),
                MonitorCheck(),
                NanGuard(),
                UnusedParameters(),
                EqualBatches(),
                Resume(),
                TestReport(),
                Timer(),
                *([Pruning(trial)] if trial and trial.prunable else []),
            ],
            "precision": default_precision(),
            "logger": [{"class_path": "project.loggers.MetricsCSV"}, {"class_path": "project.loggers.WandB"}],
            "plugins": [{"class_path": "project.checkpoint_io.AtomicCheckpointIO"}],
            "enable_model_summary": False,
        },
        args=list(arguments),
    )


def finish_wandb() -> None:
    if "wandb" in sys.modules:
        try:
            sys.modules["wandb"].finish()
        except Exception as error:  # the network is lost, or its service has ended
            log.warning("W&B has not sent all (%s): `wandb sync` can", first_line(error))
