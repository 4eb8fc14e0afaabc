"""Make artifacts of a run's checkpoint, prove them, and publish those that pass as the run's `export/` folder."""

import inspect
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule

from project.export.artifacts import ARTIFACTS, DEFAULT, check_names, failure, fingerprint, sha256
from project.export.onnx import OPSET
from project.export.parity import TOLERANCE, Batch, Examination, Metric
from project.export.process import FreshProcess
from project.export.source import Source
from project.runs import Run, import_class

VERSIONS = ("torch", "lightning", "onnx", "onnxscript", "onnxruntime", "torchao", "tokenizers", "numpy")


def monitored(config: dict[str, Any]) -> Metric | None:
    """The metric that the run's configuration chooses its checkpoint by."""
    for callback in config["trainer"].get("callbacks") or []:
        options = callback.get("init_args") or {}
        if callback["class_path"].endswith("ModelCheckpoint") and options.get("monitor"):
            return Metric(options["monitor"], options.get("mode", "min"))
    return None


def data_module(run: Run) -> LightningDataModule:
    """The run's data, prepared, with the run's own tokenizer and labels."""
    config = dict(run.config["data"])
    accepted = inspect.signature(import_class(config["class_path"])).parameters
    assets = {name: value for name, value in run.data_assets().items() if name in accepted}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    parsed = parser.parse_object({"data": {**config, "init_args": {**(config.get("init_args") or {}), **assets}}})
    data: LightningDataModule = parser.instantiate_classes(parsed).data
    data.prepare_data()
    return data


def validation_batches(run: Run) -> list[Batch]:
    """The validation split, on the CPU."""
    data = data_module(run)
    data.setup("validate")
    return list(data.val_dataloader())


def export(run: Run, checkpoint: Path, names: Sequence[str] = DEFAULT, max_drop: float = 0.01) -> dict[str, Any]:
    """Write the bundle, in place of an earlier one.

    Args:
        run: where it comes from, and where it goes: its `export/`.
        checkpoint: one of the run.
        names: of `ARTIFACTS`.
        max_drop: by how much the validation metric of an int8 artifact may be worse than eager's.

    Returns:
        The manifest. What failed or was skipped is in it, with the reason, and not in the folder.

    Raises:
        UserError: nothing could be tried; an earlier bundle is as it was.
    """
    check_names(names)
    source = Source(run, checkpoint)
    examination = Examination(source, validation_batches(run), monitored(run.config), max_drop)
    draft = Path(tempfile.mkdtemp(dir=run.folder, prefix=".export-"))
    try:
        manifest = _manifest(run, checkpoint, source, examination) | _make(draft, source, examination, names)
        shutil.copyfile(run.config_file, draft / "training.yaml")
        for asset in ("tokenizer.json", "labels.json"):
            if (run.folder / asset).is_file():
                shutil.copyfile(run.folder / asset, draft / asset)
        (draft / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        draft.chmod(0o755)
        _publish(draft, run.folder / "export")
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def _make(folder: Path, source: Source, examination: Examination, names: Sequence[str]) -> dict[str, Any]:
    """Write and examine each artifact; remove what fails."""
    made: dict[str, Any] = {}
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        processes: dict[str, FreshProcess] = {}
        for name in names:
            artifact, path = ARTIFACTS[name], folder / ARTIFACTS[name].file
            if reason := artifact.load().unsupported():
                skipped[name] = reason
                continue
            try:
                (artifact.load().write_int8 if artifact.int8 else artifact.load().write)(source, path)
            except Exception as error:
                failed[name] = failure(error)
                path.unlink(missing_ok=True)  # at once: int8 may be made of the file
                continue
            # It loads while the next one is written.
            processes[name] = stack.enter_context(FreshProcess(name, path, source.interface, torch.get_num_threads()))
        for name, process in processes.items():
            artifact, path = ARTIFACTS[name], folder / ARTIFACTS[name].file
            try:
                report = examination.examine(artifact, process)
            except Exception as error:
                failed[name] = failure(error)
                continue
            finally:
                process.close()
            facts = {"file": artifact.file, "method": artifact.method}
            made[name] = facts | {"bytes": path.stat().st_size, "sha256": sha256(path)} | report
    for name in failed:
        (folder / ARTIFACTS[name].file).unlink(missing_ok=True)
    return {"artifacts": made, "failed": failed, "skipped": skipped}


def _manifest(run: Run, checkpoint: Path, source: Source, examination: Examination) -> dict[str, Any]:
    """All but the artifacts."""
    metric = examination.metric
    return {
        "run": f"{run.name}/{run.id}",
        "task": f"{type(source.task).__module__}.{type(source.task).__qualname__}",
        "checkpoint": {
            "file": os.path.relpath(checkpoint, run.folder),
            "epoch": source.epoch,
            "step": source.step,
            "weights_sha256": fingerprint(source.weights.values()),
        },
        "interface": source.interface.to_json(),
        "onnx_opset": OPSET,
        "eager": {
            "bytes": 4 * sum(p.numel() for p in source.network.parameters()),
            "metrics": examination.whole.scores,
        },
        "metric": metric.name if metric else None,
        "max_drop": examination.max_drop,
        "tolerance": TOLERANCE,
        "batches": len(examination.whole.batches),
        "versions": {name: _version(name) for name in VERSIONS} | {"python": platform.python_version()},
        "machine": {"processor": _processor(), "threads": torch.get_num_threads()},
    }


def _publish(draft: Path, folder: Path) -> None:
    """Put the draft in place of the folder; at no time is there half a bundle."""
    if folder.exists():
        old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".export-"))
        folder.rename(old / "old")
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        draft.rename(folder)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Name of the processor, which latencies depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
