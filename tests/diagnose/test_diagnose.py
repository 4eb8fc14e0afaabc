"""The checks as a whole: nothing is changed, every structure of batch is understood, a crash is said in one line."""

import copy
import random
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from project.diagnose import CHECKS, Result, diagnose
from project.diagnose.batches import Padding, batch_size, cut, find_labels, map_leaves, same, take, tensors
from project.diagnose.data import decoded_batch
from project.diagnose.rates import highest, moving_mean, unsmoothed
from project.diagnose.subject import Subject, peak_rate, without_noise
from project.diagnose.survey import hash_rows, survey
from project.errors import UserError

OPTIONS = {"accelerator": "cpu", "max_epochs": 2}


class Pairs(LightningDataModule):
    """Tokens (B, 6) and labels as a tuple: whether token 1 or token 2 is among them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(3, 12, (320, 6), generator=generator)
        labels = torch.arange(320) % 2
        tokens[torch.arange(320), torch.randint(6, (320,), generator=generator)] = 1 + labels
        rows = list(zip(tokens, labels, strict=True))
        self.rows: dict[str, Any] = {"train": rows[:256], "val": rows[256:]}

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.rows["train"], batch_size=16, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.rows["val"], batch_size=16)


class Bag(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 16), nn.Linear(16, 2)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        tokens_BT, labels_B = batch
        return F.cross_entropy(self.head(self.embedding(tokens_BT).mean(1)), labels_B)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.02)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {result.check: result for result in diagnose(Bag(), Pairs(), trainer_options=OPTIONS)}


def test_a_healthy_stranger_passes(results: dict[str, Result]) -> None:
    assert [r for r in results.values() if r.status == "failure"] == []
    # a bag of words does not know the order of its tokens, and that alone is said
    speed = {"loader-speed", "workers"}  # which depends on what else the machine does
    assert {r.check for r in results.values() if r.status == "warning"} - speed == {"token-order"}
    left_out = CHECKS.keys() - results.keys()
    # no tokenizer, no padding, a single layer beside the embedding
    assert left_out == {"unknown-tokens", "padding-independence", "gradient-ratio"}


def test_what_is_seen(results: dict[str, Result]) -> None:
    assert results["initial-loss"].values["expected"] == pytest.approx(np.log(2))
    assert results["split-overlap"].values["examples"] == {"train": 256, "val": 64}
    sizes = results["memory"].values["bytes"]
    parameters = 4 * (12 * 16 + 16 * 2 + 2)
    assert sizes["parameters"] == sizes["gradients"] == parameters
    assert sizes["optimizer state"] == 2 * parameters + 3 * 4  # Adam's two moments, and a count for each parameter
    assert results["schedule"].values["steps"] == 2 * 256 / 16
    assert results["schedule"].values["peak"] == 0.02
    assert results["learning-rate"].values["configured"] == 0.02


def test_nothing_is_changed() -> None:
    model, data = Bag(), Pairs()
    weights, attributes = copy.deepcopy(model.state_dict()), set(vars(model))
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    rows = dict(data.rows)
    diagnose(model, data, only=["overfit", "gradients", "label-balance"], trainer_options=OPTIONS)
    assert same(model.state_dict(), weights) is None
    assert set(vars(model)) == attributes and model.training and model._trainer is None and data.trainer is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]  # type: ignore[index]
    assert data.rows == rows


def test_the_same_twice() -> None:
    first, second = (diagnose(Bag(), Pairs(), only=["zero-grad"], trainer_options=OPTIONS) for _ in range(2))
    torch.manual_seed(0)
    assert first[0].status == second[0].status == "pass"


def test_a_crash_is_one_line_and_fails_one_check() -> None:
    class Crashing(Bag):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise ValueError(f"no\nsuch thing as {id(self)}")

    seen: list[Result] = []
    diagnose(Crashing(), Pairs(), only=["initial-loss", "gradients"], trainer_options=OPTIONS, report=seen.append)
    assert [result.status for result in seen] == ["failure", "not run"]
    assert re.match(r"crashed with ValueError: no such thing as \d+ \(test_diagnose\.py:", seen[0].seen)
    assert seen[1].seen == "crashed as initial-loss did"


def test_a_crash_leaves_no_hooks_on_saved_tensors() -> None:
    class Crashing(Bag):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            raise RuntimeError("out of memory")

    [result] = diagnose(Crashing(), Pairs(), only=["memory"], trainer_options=OPTIONS)
    assert result.status == "failure" and "out of memory" in result.seen
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_an_unknown_check_has_its_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'overfit'"):
        diagnose(Bag(), Pairs(), only=["over-fit"])


class Named(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Data:
    tokens: Tensor
    text: list[str]


X, Y = torch.arange(12).view(3, 4), torch.tensor([2, 0, 1])


@pytest.mark.parametrize(
    ("batch", "paths"),
    [
        ({"a": {"b": X}, "labels": Y}, ["a.b", "labels"]),
        ((X, Y), ["0", "1"]),
        ([X, {"y": Y, "size": 3}], ["0", "1.y"]),
        (Named(X, Y), ["x", "y"]),
        (Data(X, ["one", "two", "three"]), ["tokens"]),
        (X, [""]),
    ],
)
def test_batches_of_any_structure(batch: Any, paths: list[str]) -> None:
    assert list(tensors(batch)) == paths and batch_size(batch) == 3
    chosen = take(batch, [2, 0])
    assert type(chosen) is type(batch)
    for path, tensor in tensors(batch).items():
        assert torch.equal(tensors(chosen)[path], tensor[[2, 0]])
    if isinstance(batch, Data):
        assert chosen.text == ["three", "one"]
    assert same(batch, map_leaves(lambda _, leaf: leaf, batch)) is None
    assert same(batch, chosen) is not None


def test_labels_are_found_by_name_and_place() -> None:
    assert find_labels({"x": X, "targets": Y}) == "targets"
    assert find_labels((X, Y)) == "1"
    assert find_labels({"x": X}) is None


TOKENS = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 0, 0, 0], [5, 7, 9, 0, 0]])
MASK = TOKENS != 0


@pytest.mark.parametrize(
    ("batch", "source"),
    [
        ({"tokens": TOKENS, "padding_mask": MASK}, "mask"),
        ({"tokens": TOKENS, "key_padding_mask": ~MASK}, "mask"),
        ({"input_ids": TOKENS, "attention_mask": MASK.long()}, "mask"),
        ({"tokens": TOKENS, "lengths": MASK.sum(1)}, "lengths"),
        ((TOKENS, Y), "token id"),
    ],
)
def test_padding_is_recognised(batch: Any, source: str) -> None:
    padding = Padding([batch])
    lengths = padding.lengths(batch)
    assert padding.source == source and lengths is not None
    assert lengths.tolist() == [5, 2, 3]
    short = cut(take(batch, [1, 1]), 2)
    assert next(iter(tensors(short).values())).tolist() == [[5, 6], [5, 6]]


def test_a_sentence_end_is_no_padding() -> None:
    sentences = torch.tensor([[5, 9, 7, 9], [6, 5, 8, 9], [9, 9, 9, 9]])
    assert Padding([(sentences, Y)]).source == ""


def test_hashes_tell_examples_apart_and_do_not_see_padding() -> None:
    lengths = MASK.sum(1)
    hashes = hash_rows({"tokens": TOKENS, "padding_mask": MASK}, lengths)
    assert len(set(hashes.tolist())) == 3
    wider = {name: F.pad(t, (0, 3)) for name, t in (("tokens", TOKENS), ("padding_mask", MASK))}
    assert torch.equal(hash_rows(wider, lengths), hashes)
    swapped = {"tokens": TOKENS[:, [1, 0, 2, 3, 4]], "padding_mask": MASK}
    assert not (hash_rows(swapped, lengths) == hashes).any()
    floats = hash_rows({"x": torch.tensor([[0.5, 1.0], [0.5, 1.0001]])}, None)
    assert floats[0] != floats[1]


def test_lightnings_smoothing_is_undone() -> None:
    raw, average, smoothed = [3.0, 2.0, 4.0, 1.0], 0.0, []
    for i, loss in enumerate(raw):  # as Lightning's finder does it
        average = 0.98 * average + 0.02 * loss
        smoothed.append(average / (1 - 0.98 ** (i + 2)))
    assert unsmoothed(smoothed) == pytest.approx(raw)
    assert moving_mean(raw, 2) == [3.0, 2.5, 3.0, 2.5]


def test_the_highest_memory() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        first = torch.ones(1_000_000)
        second = torch.ones(500_000)
        del first
        third = torch.ones(250_000)
        del second, third
    assert highest(profiled) == pytest.approx(6_000_000, abs=10_000)


def test_peak_rates_and_noise() -> None:
    assert peak_rate({"lr": 0.1}) == 0.1
    assert peak_rate({"lr": 0.0, "initial_lr": 0.2}) == 0.2
    assert peak_rate({"lr": 0.0, "initial_lr": 0.2, "max_lr": 0.5}) == 0.5
    model = Bag()
    model.dropout, model.loss, model.rate = nn.Dropout(0.3), nn.CrossEntropyLoss(label_smoothing=0.1), 0.3  # type: ignore[assignment]
    quiet: Any = without_noise(model)
    assert (quiet.dropout.p, quiet.loss.label_smoothing, quiet.rate) == (0.0, 0.0, 0.3)


def test_held_out_batches_are_not_trained_on() -> None:
    subject = Subject(Bag(), Pairs(), OPTIONS)
    trained = {row.tobytes() for batch in subject.steps for row in batch[0].numpy()}
    held_out = {row.tobytes() for batch in subject.held_out for row in batch[0].numpy()}
    assert held_out and not trained & held_out


def test_empty_texts_are_no_repeated_examples() -> None:
    tokens = torch.tensor([[2, 0, 0], [2, 5, 6], [2, 0, 0], [2, 5, 7]])
    batch = {"tokens": tokens, "padding_mask": tokens != 0, "labels": torch.arange(4) % 2}
    assert len(survey([batch], Padding([batch]), None).hashes) == 2


def test_a_batch_that_begins_with_empty_texts_is_decoded() -> None:
    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return " ".join("_ab"[i] for i in ids if i)

    tokens = torch.tensor([[0, 0]] * 6 + [[1, 2]] * 2)
    mask, labels = torch.ones_like(tokens).bool(), torch.zeros(8, dtype=torch.int64)
    batch = {"tokens": tokens, "padding_mask": mask, "labels": labels}
    subject: Any = SimpleNamespace(train_batches=[batch], tokenizer=Tokenizer(), padding=Padding([batch]), data=None)
    result = decoded_batch(subject)
    assert result is not None and (result.status, result.seen) == ("pass", "0: 'a b'")
    tokens.zero_()
    result = decoded_batch(subject)
    assert result is not None and result.status == "failure"
