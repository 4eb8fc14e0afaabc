"""Write down what a run is made of before its first step: configuration, code, packages, tokenizer, labels."""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from project.runs import Run


class RunRecord(SaveConfigCallback):
    """``config.yaml`` as resolved, ``provenance.json``, and what the data module's ``save_assets`` gives.

    The same configuration goes once to each logger.
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
        if not run.config_file.exists() or run.config_file.read_text() != text:
            run.keep("config.yaml")
            run.keep("provenance.json")
            run.config_file.write_text(text)
            run.write_json("provenance.json", provenance())
            datamodule = trainer.datamodule  # type: ignore[attr-defined]
            if hasattr(datamodule, "save_assets"):
                datamodule.save_assets(run.folder)
        for logger in trainer.loggers:
            logger.log_hyperparams(run.config)


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


def provenance() -> dict[str, Any]:
    """Command line, git commit, and versions of Python, the machine and every installed package."""
    return {
        "command": sys.argv,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changes": (_git("status", "--porcelain") or "").splitlines(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "packages": installed_packages(),
    }
