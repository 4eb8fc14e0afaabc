"""Small broken modules and data modules, one fault each, planted in a healthy classifier of short sequences.

Each class says its fault in one line; tests/diagnose/test_faults.py says which check has to find it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

CLASSES, VOCAB, LENGTH = 4, 24, 16
PAD, FIRST_WORD = 0, 8  # ids 1 to 4 decide the label, 5 to 7 are unused
SIZES = {"train": 512, "val": 128, "test": 128}

Batch = dict[str, Tensor]

# The healthy pair


def collate(rows: list[tuple[Tensor, Tensor]], pad: int = PAD, length: int | None = None) -> Batch:
    """Tokens (B, T), padded at the end, mask (B, T), True for real tokens, and labels (B,)."""
    tokens, labels = zip(*rows, strict=True)
    padded_BT = nn.utils.rnn.pad_sequence(list(tokens), batch_first=True, padding_value=pad)
    lengths_B = torch.tensor([len(row) for row in tokens])
    if length is not None:
        padded_BT = F.pad(padded_BT, (0, length - padded_BT.size(1)), value=pad)
    return {
        "tokens": padded_BT,
        "padding_mask": torch.arange(padded_BT.size(1)) < lengths_B[:, None],
        "labels": torch.stack(labels),
    }


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, tokens: list[Tensor], labels: list[int]) -> None:
        self.tokens, self.labels = tokens, labels

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.tokens[i], torch.tensor(self.labels[i])


class Markers(LightningDataModule):
    """Healthy: words at random, and one of four markers, which is the label."""

    shuffle = True

    def __init__(self) -> None:
        super().__init__()
        self.splits: dict[str, Dataset[Any]] = {}

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        tokens, labels = [], []
        for i in range(size):
            length = int(torch.randint(4, LENGTH + 1, (), generator=generator))
            row = torch.randint(FIRST_WORD, VOCAB, (length,), generator=generator)
            row[torch.randint(length, (), generator=generator)] = 1 + i % CLASSES
            tokens.append(row)
            labels.append(i % CLASSES)
        return Rows(tokens, labels)

    def setup(self, stage: str | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.splits = {name: self.make(size, generator) for name, size in SIZES.items()}

    def loader(self, name: str) -> DataLoader[Any]:
        shuffle = self.shuffle and name == "train"
        return DataLoader(self.splits[name], batch_size=32, shuffle=shuffle, collate_fn=self.collate)

    def collate(self, rows: list[Any]) -> Any:
        return collate(rows)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader("train")

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        return self.loader("test")


class Attention(nn.Module):
    """Healthy: self-attention in four heads, over real tokens."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def split(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, H, T, K)."""
        return x_BTD.unflatten(-1, (4, -1)).transpose(1, 2)

    def join(self, x_BHTK: Tensor) -> Tensor:
        return x_BHTK.transpose(1, 2).flatten(2)

    def weights(self, scores_BHTS: Tensor) -> Tensor:
        return scores_BHTS.softmax(-1)

    def visible(self, mask_BT: Tensor) -> Tensor:
        return mask_BT

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        q, k, v = map(self.split, self.qkv(x_BTD).chunk(3, -1))
        scores_BHTS = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        hidden = ~self.visible(mask_BT)[:, None, None, :] if len(scores_BHTS) == len(mask_BT) else torch.tensor(False)
        return self.out(self.join(self.weights(scores_BHTS.masked_fill(hidden, -3e4)) @ v))


class Classifier(LightningModule):
    """Healthy: embedding, positions, a layer of attention, the mean over real tokens, a linear head."""

    attention_class: type[Attention] = Attention
    lr = 3e-3

    def __init__(self, d_model: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, d_model)
        angles_TK = torch.arange(64)[:, None] / 100 ** (torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("places", torch.stack([angles_TK.sin(), angles_TK.cos()], -1).flatten(1))
        self.norm, self.last_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = self.attention_class(d_model)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.ReLU(), nn.Linear(2 * d_model, d_model))
        self.head = nn.Linear(d_model, CLASSES)
        nn.init.normal_(self.head.weight, std=0.02)

    def positions(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.places[: x_BTD.size(1)]  # type: ignore[index]

    def mask(self, batch: Batch) -> Tensor:
        return batch["padding_mask"]

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return (x_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True).clamp(min=1)

    def forward(self, batch: Batch) -> Tensor:
        mask_BT = self.mask(batch)
        x_BTD = self.positions(self.embedding(batch["tokens"]))
        x_BTD = x_BTD + self.attention(self.norm(x_BTD), mask_BT)
        x_BTD = x_BTD + self.feed_forward(self.last_norm(x_BTD))
        return self.head(self.pool(x_BTD, mask_BT))

    def loss(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return F.cross_entropy(logits_BC, labels_B)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(self(batch), batch["labels"])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val/loss", self.loss(self(batch), batch["labels"]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


# Data with a fault


class ShuffledLabels(Markers):
    """Labels of random other rows."""

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        rows: Any = super().make(size, generator)
        order = torch.randperm(size, generator=generator).tolist()
        return Rows(rows.tokens, [rows.labels[i] for i in order])


class TestRowsInTrain(Markers):
    """A quarter of the test rows stand in the training split too."""

    __test__ = False

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        train, test = self.splits["train"], self.splits["test"]
        self.splits["train"] = Rows(train.tokens + test.tokens[:32], train.labels + test.labels[:32])  # type: ignore[attr-defined]


class SortedLabels(Markers):
    """The training split is read class by class."""

    shuffle = False

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        rows: Any = super().make(size, generator)
        order = sorted(range(size), key=rows.labels.__getitem__)
        return Rows([rows.tokens[i] for i in order], [rows.labels[i] for i in order])


class OneClass(Markers):
    """All rows have the same label."""

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        rows: Any = super().make(size, generator)
        return Rows(rows.tokens, [2] * size)


class LabelsOffByOne(Markers):
    """Labels count from one, logits from zero."""

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        rows: Any = super().make(size, generator)
        return Rows(rows.tokens, [label + 1 for label in rows.labels])


class ConstantInputs(Markers):
    """Every row has the same tokens, whatever its label."""

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        rows: Any = super().make(size, generator)
        return Rows([rows.tokens[0]] * size, rows.labels)


class RandomReading(Markers):
    """Reading a row gives other tokens each time, in validation too."""

    class Noisy(Rows):
        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            tokens, label = super().__getitem__(i)
            return torch.where(torch.rand(len(tokens)) < 0.3, FIRST_WORD, tokens), label

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        rows: Any = super().make(size, generator)
        return self.Noisy(rows.tokens, rows.labels)


class MostlyPadding(Markers):
    """Every batch is padded to four times the longest text there is."""

    def collate(self, rows: list[Any]) -> Batch:
        return collate(rows, length=4 * LENGTH)


class UnknownWords(Markers):
    """The tokenizer knows half of the words."""

    def __init__(self) -> None:
        super().__init__()
        known = {f"w{i}": i for i in range(VOCAB) if i != 5}
        self.tokenizer = Tokenizer(WordLevel({"[UNK]": 5, **known}, unk_token="[UNK]"))

    def collate(self, rows: list[Any]) -> Batch:
        batch = collate(rows)
        return batch | {"tokens": batch["tokens"].where(batch["tokens"] < VOCAB * 2 // 3, 5)}


class BrokenNumbers(LightningDataModule):
    """One value of the features is not a number."""

    def loader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0)
        images, labels = torch.randn(128, 1, 8, 8, generator=generator), torch.arange(128) % 2
        images[:, 0, 3, 3] = torch.nan
        return DataLoader(TensorDataset(images, labels), batch_size=32)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader()


class Order(Markers):
    """Healthy: both of two markers stand in each row, and the label is which one comes first."""

    def make(self, size: int, generator: torch.Generator) -> Dataset[Any]:
        rows: Any = super().make(size, generator)
        for i, row in enumerate(rows.tokens):
            first, second = sorted(torch.randperm(len(row), generator=generator)[:2].tolist())
            row[row < FIRST_WORD] = FIRST_WORD
            row[first], row[second] = (1, 2) if i % 2 else (2, 1)
        return Rows(rows.tokens, [i % 2 for i in range(size)])


# Modules with a fault


class SoftmaxBeforeCrossEntropy(Classifier):
    """Cross-entropy, which takes logits, is given probabilities."""

    def loss(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return F.cross_entropy(logits_BC.softmax(-1), labels_B)


class ForgottenZeroGrad(Classifier):
    """Manual optimization that never sets gradients to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        self.optimizers().step()  # type: ignore[union-attr]
        return loss


class FrozenLayer(Classifier):
    """The attention is left frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.attention.requires_grad_(False)


class UnusedParameter(Classifier):
    """A layer that forward never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = nn.Linear(32, 32)


class DetachedEncoder(Classifier):
    """No gradient passes the pooling."""

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return super().pool(x_BTD, mask_BT).detach()


class OptimizerWithoutEncoder(Classifier):
    """The optimizer holds the head alone, though all is meant to be trained."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.head.parameters(), lr=self.lr)


class InvertedMask(Classifier):
    """Attention looks at padding, and hides the real tokens."""

    class attention_class(Attention):  # noqa: N801
        def visible(self, mask_BT: Tensor) -> Tensor:
            return ~mask_BT


class NoMask(Classifier):
    """Attention looks at padding too."""

    class attention_class(Attention):  # noqa: N801
        def visible(self, mask_BT: Tensor) -> Tensor:
            return torch.ones_like(mask_BT)


class PooledPadding(Classifier):
    """The mean counts padded positions."""

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return x_BTD.mean(1)


class WrongPaddingId(Classifier):
    """The mask is made from another padding id than that of the data."""

    def mask(self, batch: Batch) -> Tensor:
        return batch["tokens"] != 7


class SoftmaxOverBatch(Classifier):
    """Attention weights sum to one over the batch, not over the tokens."""

    class attention_class(Attention):  # noqa: N801
        def weights(self, scores_BHTS: Tensor) -> Tensor:
            return scores_BHTS.softmax(0)


class BatchStatistics(Classifier):
    """Pooled vectors are normalised over the batch, in evaluation too."""

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        x_BD = super().pool(x_BTD, mask_BT)
        return (x_BD - x_BD.mean(0)) / (x_BD.std(0, correction=0) + 0.1)


class MixedHeads(Classifier):
    """A view takes the first dimension for heads, and so mixes the examples of a batch."""

    class attention_class(Attention):  # noqa: N801
        def split(self, x_BTD: Tensor) -> Tensor:
            size, length, _ = x_BTD.shape
            return x_BTD.reshape(4, size, length, -1).transpose(0, 1)

        def join(self, x_BHTK: Tensor) -> Tensor:
            size, _, length, _ = x_BHTK.shape
            return x_BHTK.transpose(0, 1).reshape(size, length, -1)


class NoPositions(Classifier):
    """Tokens do not know their place, though the label depends on it."""

    def positions(self, x_BTD: Tensor) -> Tensor:
        return x_BTD


class DropoutInEvaluation(Classifier):
    """Dropout without asking whether the module trains."""

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return F.dropout(super().pool(x_BTD, mask_BT), 0.5)


class OtherPathInEvaluation(Classifier):
    """A scale is applied in training alone."""

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        x_BD = super().pool(x_BTD, mask_BT)
        return 3 * x_BD if self.training else x_BD


class Deep(Classifier):
    """Twelve more layers between pooling and head."""

    activation: type[nn.Module] = nn.ReLU

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), self.activation()) for _ in range(12)))

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return self.deep(super().pool(x_BTD, mask_BT))


class ExplodingInitialisation(Deep):
    """Weights so large that each of twelve layers multiplies its input."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.deep:
            nn.init.normal_(layer[0].weight, std=1.0)  # type: ignore[index, arg-type]


class VanishingSigmoid(Deep):
    """Twelve sigmoids, each of which takes three quarters of the gradient at least."""

    activation = nn.Sigmoid


class DeadReLU(Classifier):
    """A bias far below zero, so that no unit of the feed-forward network is ever on."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.feed_forward[0].bias, -100.0)  # type: ignore[arg-type]


class SaturatedTanh(Classifier):
    """Inputs of a tanh so large that all its outputs are one or minus one."""

    def __init__(self) -> None:
        super().__init__()
        self.squash = nn.Tanh()

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return self.squash(1000 * super().pool(x_BTD, mask_BT))


class LargeHead(Classifier):
    """A head so large that the first answers are certain, and wrong."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.head.weight, std=20.0)


class ZeroRate(Classifier):
    """A learning rate of zero."""

    lr = 0.0


class HugeRate(Classifier):
    """A learning rate ten thousand times too large."""

    lr = 30.0


class TinyRate(Classifier):
    """A learning rate ten thousand times too small."""

    lr = 3e-7


class EndlessWarmup(Classifier):
    """The learning rate rises over a million steps, of which the training has a few."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 1e6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class LogOfZero(Classifier):
    """The logarithm of probabilities that may be exactly zero."""

    def loss(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        shares_BC = logits_BC.relu()
        return F.nll_loss((shares_BC / shares_BC.sum(-1, keepdim=True)).log(), labels_B)


class SummedLoss(Classifier):
    """The loss is summed over classes and twenty times too large."""

    def loss(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return F.cross_entropy(logits_BC, labels_B, reduction="sum")


class Cancellation(Classifier):
    """A sum of large numbers that cancel, but not in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.full((32,), 1000.0))

    def pool(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        x_BD = super().pool(x_BTD, mask_BT)
        return F.linear(x_BD + self.offset, torch.eye(32)) - self.offset


class NoLearningFromLabels(Classifier):
    """The target is what the network itself predicts, not the label."""

    def loss(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return F.cross_entropy(logits_BC, logits_BC.argmax(-1))


# Healthy strangers: written with nothing of this project


class Images(LightningDataModule):
    """Healthy: tuples of images (B, 1, 8, 8) and labels: which half is bright."""

    def setup(self, stage: str | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        images, labels = torch.randn(768, 1, 8, 8, generator=generator), torch.arange(768) % 2
        images[labels == 0, :, :4] += 1.0
        images[labels == 1, :, 4:] += 1.0
        self.images, self.labels = images, labels

    def loader(self, start: int, end: int, shuffle: bool = False) -> DataLoader[Any]:
        rows = TensorDataset(self.images[start:end], self.labels[start:end])
        return DataLoader(rows, batch_size=32, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader(0, 512, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader(512, 640)

    def test_dataloader(self) -> DataLoader[Any]:
        return self.loader(640, 768)


class Convolutions(LightningModule):
    """Healthy: two convolutions with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
            nn.Dropout(0.1), nn.Linear(256, 2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Waves(LightningDataModule):
    """Healthy: series (B, T, 1) that rise or fall, as dictionaries."""

    def setup(self, stage: str | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        y = torch.arange(768) % 2
        steps = torch.randn(768, 12, 1, generator=generator) + (y.float() - 0.5)[:, None, None]
        self.x, self.y = steps.cumsum(1) / 4, y

    def loader(self, start: int, end: int, shuffle: bool = False) -> DataLoader[Any]:
        rows = [{"series": x, "target": y} for x, y in zip(self.x[start:end], self.y[start:end], strict=True)]
        return DataLoader(rows, batch_size=32, shuffle=shuffle)  # type: ignore[arg-type]

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader(0, 512, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader(512, 640)

    def test_dataloader(self) -> DataLoader[Any]:
        return self.loader(640, 768)


class Recurrent(LightningModule):
    """Healthy: an LSTM, optimized by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.lstm, self.out = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        loss = F.cross_entropy(self(batch["series"]), batch["target"])
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("loss", loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)
