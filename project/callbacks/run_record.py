"""Write down what a run is made of, before its first step, and what its training took."""

import hashlib
import platform
import subprocess
import sys
from collections.abc import Sized
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.cli import SaveConfigCallback

import project
from project.files import write_whole
from project.loggers import WandB
from project.machine import peak_memory
from project.runs import Run


class RunRecord(SaveConfigCallback):
    """``config.yaml`` as resolved, ``provenance.json``, ``data.json``, what the data module's ``save_assets`` gives;
    when training has ended, ``training.json``. The configuration goes once to each logger.
    """

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        run = Run.current()
        if run is None or stage != "fit":
            return
        config = self.config.clone()
        config.pop("config", None)
        config.trainer.default_root_dir = None  # this folder, not that of the next run from the file
        for argument in ("ckpt_path", "weights_only"):
            config.pop(argument, None)
        if run.config_file.exists():
            given = (run.config.get("data") or {}).get("init_args") or {}
            for name in run.data_assets().keys() & given.keys():  # a run that goes on was handed its own
                config.data.init_args[name] = given[name]
        text = self.parser.dump(config, skip_none=False)
        if not run.config_file.exists() or run.config_file.read_text(encoding="utf-8") != text:
            run.keep("config.yaml")
            run.keep("provenance.json")
            run.keep("data.json")
            write_whole(run.config_file, text)
            run.write_json("provenance.json", provenance())
            datamodule = trainer.datamodule  # type: ignore[attr-defined]
            if hasattr(datamodule, "save_assets"):
                datamodule.save_assets(run.folder)
        parameters = sum(p.numel() for p in pl_module.parameters())
        for logger in trainer.loggers:
            logger.log_hyperparams({**run.config, "parameters": parameters})
            if isinstance(logger, WandB):
                for callback in [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks]:
                    if isinstance(callback, ModelCheckpoint | EarlyStopping) and callback.monitor:
                        logger.summarize_best(callback.monitor, callback.mode)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        run = Run.current()
        if run is not None and trainer.is_global_zero and not (run.folder / "data.json").exists():
            run.write_json("data.json", data_facts(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        run = Run.current()
        if run is not None and trainer.is_global_zero:
            run.write_json("training.json", training_facts(trainer, pl_module))


def data_facts(trainer: Trainer) -> dict[str, Any]:
    """What the data module's ``facts`` gives; without that, the sizes that the loaders of training and validation tell.

    ``source`` is what the data come from, ``splits`` has of each split ``examples`` and, where known, ``sha256``.
    """
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    if hasattr(data, "facts"):
        facts: dict[str, Any] = data.facts()
        return facts
    loaders = {"train": trainer.train_dataloader, "val": trainer.val_dataloaders}
    datasets = {split: getattr(loader, "dataset", None) for split, loader in loaders.items()}
    splits = {split: {"examples": len(rows)} for split, rows in datasets.items() if isinstance(rows, Sized)}
    source = f"{type(data).__module__}.{type(data).__qualname__}" if data is not None else None
    return {"source": source, "splits": splits}


def training_facts(trainer: Trainer, task: LightningModule) -> dict[str, Any]:
    """Time, extent, size and the peak of memory, in bytes: of the GPU, or without one of the process."""
    timer = next((c for c in trainer.callbacks if isinstance(c, Timer)), None)  # type: ignore[attr-defined]
    return {
        "seconds": timer.time_elapsed("train") if timer else None,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "parameters": sum(p.numel() for p in task.parameters()),
        "processes": trainer.world_size,
        "peak_memory": peak_memory(trainer.strategy.root_device),
    }


def _git(*arguments: str) -> str | None:
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def installed_packages() -> dict[str, str]:
    """Versions by name, from the folders' names: reading each package's metadata takes half a second at every start."""
    found = (f.name.removesuffix(".dist-info") for path in sys.path for f in Path(path).glob("*.dist-info"))
    return dict(sorted(name.rsplit("-", 1) for name in found))


def code_sha256() -> str:
    """One hash of all Python files of the checkout, committed or not; without git, of this package's."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    package = Path(project.__file__).parent
    files = sorted(package.rglob("*.py")) if listed is None else [Path(name) for name in sorted(listed.splitlines())]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(file.as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def provenance() -> dict[str, Any]:
    """Command line, git commit, code, and versions of Python, the machine and every installed package."""
    return {
        "command": sys.argv,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changes": (_git("status", "--porcelain") or "").splitlines(),
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "packages": installed_packages(),
    }
