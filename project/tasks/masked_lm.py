"""Masked language modelling: hide some tokens of a text and predict them from the rest (Devlin et al., BERT, 2019)."""

import math

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric

from project.nn import MaskedLanguageModel
from project.tasks.base import Task
from project.tasks.export_spec import ExportSpec
from project.tasks.masking import draws, mask_tokens

Batch = dict[str, Tensor]


class Perplexity(MeanMetric):
    """e to the mean of all losses it was updated with, over batches and processes."""

    def compute(self) -> Tensor:
        return super().compute().exp()


class MaskedLanguageModeling(Task):
    """Trains an encoder on texts without labels.

    In training, each epoch hides other tokens; validation and test always hide the same.

    Args:
        encoder: maps (B, T, d_model) and a padding mask (B, T) to (B, T, d_model); has the attribute `d_model`.
        vocab_size: number of token ids, taken from the data.
        mask_share: share of a text's tokens that are to be predicted.
        mask_id: id of the mask token, for a tokenizer other than ours.
        num_special: token ids below are never hidden: 1000 for BERT's tokenizers.
        embedding_dropout: dropout on token embeddings.
        mask_seed: of the choice of tokens.
        optimizer: makes the optimizer from parameter groups.
        warmup_ratio: share of all optimizer steps in which the learning rate rises.
    """

    network: MaskedLanguageModel

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int,
        mask_share: float = 0.15,
        mask_id: int = 3,
        num_special: int = 4,
        embedding_dropout: float = 0.1,
        mask_seed: int = 0,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        warmup_ratio: float = 0.1,
    ) -> None:
        super().__init__(optimizer, warmup_ratio)
        self.save_config()
        if not 0.0 < mask_share < 1.0:
            raise ValueError(f"mask_share must lie between 0 and 1, got {mask_share}")
        if not (mask_id < vocab_size and num_special < vocab_size):
            raise ValueError(f"mask_id {mask_id} and num_special {num_special} must be below vocab_size {vocab_size}")
        self.expected_initial_loss = math.log(vocab_size)  # of a guess; `python -m project check` compares
        self.vocab_size, self.mask_share = vocab_size, mask_share
        self.mask_id, self.num_special, self.mask_seed = mask_id, num_special, mask_seed
        self.network = MaskedLanguageModel(encoder, vocab_size, embedding_dropout)
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()
        self.val_perplexity, self.test_perplexity = Perplexity(), Perplexity()

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor, chosen_BT: Tensor | None = None) -> Tensor:
        logits: Tensor = self.network(tokens_BT, padding_mask_BT, chosen_BT)
        return logits

    def export_spec(self) -> ExportSpec:
        max_length: int | None = getattr(self.network.encoder, "max_length", None)
        padding_mask_BT = torch.ones(3, 8, dtype=torch.bool).tril(4)
        return ExportSpec(
            inputs={"tokens": torch.randint(self.vocab_size, (3, 8)), "padding_mask": padding_mask_BT},
            dynamic={name: {0: "batch", 1: "sequence"} for name in ("tokens", "padding_mask")},
            outputs=["logits"],
            max_sizes={} if max_length is None else {"sequence": max_length},
            num_ids={"tokens": self.vocab_size},
        )

    def mask(self, batch: Batch, epoch: int) -> tuple[Tensor, Tensor]:
        """Token ids with some hidden, and which: (B, T) both."""
        tokens_BT = batch["tokens"]
        random_BT = draws(self.mask_seed, epoch, batch["ids"], tokens_BT.size(1))
        return mask_tokens(
            tokens_BT,
            batch["padding_mask"],
            random_BT,
            self.vocab_size,
            self.mask_share,
            self.mask_id,
            self.num_special,
        )

    def _losses(self, batch: Batch, epoch: int) -> Tensor:
        """Of the N hidden tokens of a batch, (N,)."""
        tokens_BT, chosen_BT = self.mask(batch, epoch)
        logits_NV = self(tokens_BT, batch["padding_mask"], chosen_BT).float()
        return F.cross_entropy(logits_NV, batch["tokens"][chosen_BT], reduction="none")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        losses_N = self._losses(batch, 0 if self._trainer is None else self.current_epoch)
        count = max(1, len(losses_N))  # texts of special tokens alone have nothing to hide
        return self.weighted_loss(losses_N.sum(), count)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val", self.val_loss, self.val_perplexity)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "test", self.test_loss, self.test_perplexity)

    def _evaluate(self, batch: Batch, split: str, loss: MeanMetric, perplexity: Perplexity) -> None:
        losses_N = self._losses(batch, epoch=0)
        loss.update(losses_N)
        perplexity.update(losses_N)
        metrics = {f"{split}/loss": loss, f"{split}/perplexity": perplexity}
        self.log_dict(metrics, on_step=False, on_epoch=True, prog_bar=True, batch_size=len(batch["ids"]))
