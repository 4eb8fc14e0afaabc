"""Classify a whole sequence: one label out of C."""

import copy
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from project.nn import Ensemble, SequenceClassifier, members_of
from project.tasks.base import Task
from project.tasks.export_spec import ExportSpec
from project.tasks.pretrained import layer_rates, load_pretrained

Batch = dict[str, Tensor]


class SequenceClassification(Task):
    """Encoder, pooling and a linear head, trained with cross-entropy.

    Args:
        encoder: maps (B, T, d_model) and a padding mask (B, T) to (B, T, d_model); has the attribute `d_model`.
        labels: the class names in order, taken from the data.
        vocab_size: number of token ids, taken from the data; None where tokens are vectors.
        pooling: how token vectors become one vector.
        embedding_dropout: dropout on token embeddings.
        head_dropout: dropout before the last linear layer.
        word_dropout: share of tokens that a training step does not see, as if they were padding (Iyyer et al. 2015).
        label_smoothing: share of the target spread evenly over all classes.
        class_weights: weight of each class in the training loss, in the order of the labels; or a power p for weights
            in proportion to count ** -p, with a mean of 1 over the training examples.
        members: networks that are trained side by side and answer with their mean logits.
        optimizer: makes the optimizer from parameter groups.
        warmup_ratio: share of all optimizer steps in which the learning rate rises.
        num_features: size of each token, taken from the data where tokens are vectors.
        pretrained: a run's folder or a checkpoint, whose embedding and encoder training starts from.
        layer_decay: factor on the learning rate for each layer further down from the head.
        class_counts: training examples of each class, taken from the data.
    """

    def __init__(
        self,
        encoder: nn.Module,
        labels: list[str],
        vocab_size: int | None = None,
        pooling: Literal["mean", "max", "mean_max", "cls"] = "mean_max",
        embedding_dropout: float = 0.1,
        head_dropout: float = 0.1,
        word_dropout: float = 0.0,
        label_smoothing: float = 0.0,
        class_weights: list[float] | float | None = None,
        members: int = 1,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        warmup_ratio: float = 0.1,
        num_features: int | None = None,
        pretrained: str | None = None,
        layer_decay: float = 1.0,
        class_counts: list[int] | None = None,
    ) -> None:
        super().__init__(optimizer, warmup_ratio)
        self.save_config()
        if len(labels) < 2:
            raise ValueError(
                f"the training data holds one class, {labels}; a classifier needs two, see data.source.label"
            )
        if members < 1:
            raise ValueError(f"members must be 1 at least, got {members}")
        if not (0.0 <= word_dropout < 1.0 and 0.0 <= label_smoothing < 1.0 and 0.0 < layer_decay <= 1.0):
            raise ValueError(
                f"word_dropout {word_dropout} and label_smoothing {label_smoothing} must lie between 0 and 1, "
                f"layer_decay {layer_decay} above 0 and up to 1"
            )
        if isinstance(class_weights, int | float):
            class_weights = weights_by_power(class_counts, class_weights)
        if class_weights is not None and len(class_weights) != len(labels):
            raise ValueError(f"class_weights has {len(class_weights)} entries for {len(labels)} labels")
        self.labels = labels
        self.word_dropout, self.label_smoothing = word_dropout, label_smoothing
        self.pretrained, self.layer_decay = pretrained, layer_decay
        options = (vocab_size, len(labels), pooling, embedding_dropout, head_dropout, num_features)
        networks = [SequenceClassifier(encoder, *options)]
        networks += [SequenceClassifier(copy.deepcopy(encoder), *options) for _ in range(members - 1)]
        self.network = networks[0] if members == 1 else Ensemble(networks)
        self.class_weights: Tensor | None
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)

        scores = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(len(labels), average="micro"),
                "macro_f1": MulticlassF1Score(len(labels), average="macro"),
            }
        )
        self.val_scores, self.test_scores = scores.clone(prefix="val/"), scores.clone(prefix="test/")
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()
        self.confusion = MulticlassConfusionMatrix(len(labels))

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        """Logits (B, C); of an ensemble in training (M, B, C)."""
        logits: Tensor = self.network(tokens_BT, padding_mask_BT)
        return logits

    def export_spec(self) -> ExportSpec:
        network: Any = members_of(self.network)[0]
        max_length: int | None = getattr(network.encoder, "max_length", None)
        padding_mask_BT = torch.ones(3, 8, dtype=torch.bool).tril(4)
        embedding = network.embedding
        num_ids = embedding.num_embeddings if isinstance(embedding, nn.Embedding) else None
        if num_ids is not None:
            tokens = torch.randint(num_ids, (3, 8))
        else:
            tokens = torch.randn(3, 8, self.hparams["num_features"])
        return ExportSpec(
            inputs={"tokens": tokens, "padding_mask": padding_mask_BT},
            dynamic={name: {0: "batch", 1: "sequence"} for name in ("tokens", "padding_mask")},
            outputs=["logits"],
            max_sizes={} if max_length is None else {"sequence": max_length},
            num_ids={} if num_ids is None else {"tokens": num_ids},
        )

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.pretrained is not None and Path(self.pretrained).exists():
            self._load_pretrained(self.pretrained)  # now, before a strategy shares out the weights

    def on_fit_start(self) -> None:
        if self.pretrained is not None and not Path(self.pretrained).exists() and self.trainer.ckpt_path is None:
            self._load_pretrained(self.pretrained)  # says what is missing; a resumed run needs it no more

    def _load_pretrained(self, source: str) -> None:
        tokenizer = getattr(self.trainer.datamodule, "tokenizer", None)  # type: ignore[attr-defined]
        load_pretrained(self, source, tokenizer.to_str() if tokenizer else None)

    def rates(self) -> dict[nn.Parameter, float]:
        return {} if self.layer_decay == 1.0 else layer_rates(self.network, self.layer_decay)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits_MBC = self(batch["tokens"], hide_tokens(batch["padding_mask"], self.word_dropout)).float()
        logits_MBC = logits_MBC.view(-1, *logits_MBC.shape[-2:])  # M members, one where there is no ensemble
        losses_MB = F.cross_entropy(
            logits_MBC.transpose(1, 2),
            batch["labels"].expand(len(logits_MBC), -1),
            weight=None if self.class_weights is None else self.class_weights.to(logits_MBC),
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        losses_B = losses_MB.mean(0)
        return self.weighted_loss(losses_B.sum(), len(losses_B))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, self.val_scores, self.val_loss, "val/loss")

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        logits_BC = self._evaluate(batch, self.test_scores, self.test_loss, "test/loss")
        self.confusion.update(logits_BC, batch["labels"])
        return {"logits": logits_BC}

    def _evaluate(self, batch: Batch, scores: MetricCollection, loss: MeanMetric, loss_name: str) -> Tensor:
        logits_BC = self(batch["tokens"], batch["padding_mask"]).float()
        losses_B = F.cross_entropy(logits_BC, batch["labels"], reduction="none")
        loss.update(losses_B)
        scores.update(logits_BC, batch["labels"])
        self.log(loss_name, loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log_dict(scores, on_step=False, on_epoch=True, prog_bar=True)
        return logits_BC

    def on_test_epoch_end(self) -> None:
        self.confusion_matrix = self.confusion.compute()  # (C, C) counts, row: true class, column: predicted
        self.confusion.reset()

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Probability of each class, (B, C), beside the examples' ids, (B)."""
        logits_BC = self(batch["tokens"], batch["padding_mask"]).float()
        return {"ids": batch["ids"], "probabilities": logits_BC.softmax(-1)}


def hide_tokens(padding_mask_BT: Tensor, share: float) -> Tensor:
    """The mask (B, T) without a random share of its real tokens; a row that would lose all of them keeps them."""
    if share == 0.0:
        return padding_mask_BT
    left_BT = padding_mask_BT & (torch.rand(padding_mask_BT.shape, device=padding_mask_BT.device) >= share)
    return left_BT | (padding_mask_BT & ~left_BT.any(1, keepdim=True))


def weights_by_power(counts: list[int] | None, power: float) -> list[float]:
    """Class weights in proportion to count ** -power, so that their mean over all examples is 1."""
    if counts is None:
        raise ValueError("class_weights as a power needs the counts of the classes, which this data does not give")
    counts_C = torch.tensor(counts, dtype=torch.float64)
    weights_C = counts_C.clamp(min=1) ** -power
    weights: list[float] = (weights_C * counts_C.sum() / (weights_C * counts_C).sum()).tolist()
    return weights
