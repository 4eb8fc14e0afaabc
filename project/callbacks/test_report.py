"""After a test: the confusion matrix and a table of example predictions, in the run's folder and in W&B."""

import csv
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from project.runs import Run


class TestReport(Callback):
    """Works for any task with `labels`, a computed `confusion_matrix` and test steps that return logits.

    Args:
        examples: rows of the table, the first of the test split.
    """

    __test__ = False  # not a test, whatever pytest makes of its name

    def __init__(self, examples: int = 100) -> None:
        self.examples = examples
        self.rows: list[list[Any]] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rows = []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor | Mapping[str, Any] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        labels: list[str] | None = getattr(pl_module, "labels", None)
        if labels is None or not isinstance(outputs, Mapping) or len(self.rows) >= self.examples:
            return
        probabilities, predictions = outputs["logits"].softmax(-1).max(-1)
        tokenizer = getattr(trainer.datamodule, "tokenizer", None)  # type: ignore[attr-defined]
        for i in range(min(len(predictions), self.examples - len(self.rows))):
            text = tokenizer.decode(batch["tokens"][i].tolist()) if tokenizer and "tokens" in batch else ""
            actual, predicted = labels[int(batch["labels"][i])], labels[int(predictions[i])]
            self.rows.append([int(batch["ids"][i]), text, actual, predicted, round(float(probabilities[i]), 4)])

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        run, confusion = Run.current(), getattr(pl_module, "confusion_matrix", None)
        if run is None or confusion is None or not self.rows or not trainer.is_global_zero:
            return
        labels: list[str] = pl_module.labels  # type: ignore[assignment]
        columns = ["id", "text", "actual", "predicted", "probability"]
        with (run.folder / "predictions.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *self.rows])
        with (run.folder / "confusion.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [["actual \\ predicted", *labels], *([n, *r] for n, r in zip(labels, confusion.tolist(), strict=True))]
            )
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                import wandb

                logger.log_table("test/predictions", columns, self.rows)
                actual, predicted = torch.ones_like(confusion).nonzero().repeat_interleave(confusion.flatten(), 0).T
                plot = wandb.plot.confusion_matrix(
                    y_true=actual.tolist(), preds=predicted.tolist(), class_names=labels, title="test confusion"
                )
                logger.experiment.log({"test/confusion": plot})
