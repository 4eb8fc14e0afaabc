"""Weights come over, what does not fit is named, lower layers learn more slowly, and layers thaw in order."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from project.callbacks import GradualUnfreezing
from project.errors import UserError
from project.nn import Encoder
from project.tasks import MaskedLanguageModeling, SequenceClassification, Task
from project.tasks.pretrained import compare_encoders, compare_tokenizers, layer_rates, load_pretrained
from project.testing import Loader
from tests.tasks.test_suite import V, encoder, texts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the checkpoint of a language model."""
    torch.manual_seed(3)
    task = MaskedLanguageModeling(encoder(), V)
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False)
    trainer.strategy.connect(task)
    folder = tmp_path_factory.mktemp("run")
    (folder / "checkpoints").mkdir()
    trainer.save_checkpoint(folder / "checkpoints" / "best.ckpt")
    (folder / "config.yaml").write_text("{}")
    return folder


def classifier(layers: int = 2, vocab_size: int = V, **options: Any) -> SequenceClassification:
    torch.manual_seed(0)
    body = Encoder(d_model=16, num_layers=layers, num_heads=2, dropout=0.0, max_length=12)
    return SequenceClassification(body, ["a", "b", "c"], vocab_size, embedding_dropout=0.0, head_dropout=0.0, **options)


def fit(task: Task, epochs: int = 1, **options: Any) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=options.pop("enable_checkpointing", False),
        enable_progress_bar=False,
        enable_model_summary=False,
        **{key: value for key, value in options.items() if key != "ckpt_path"},
    )
    torch.manual_seed(1)
    trainer.fit(task, Loader([texts(4, 7), texts(3, 6)]), ckpt_path=options.get("ckpt_path"), weights_only=True)
    return trainer


def test_embedding_and_encoder_come_over_and_the_head_stays(run: Path) -> None:
    task = classifier()
    head = {name: value.clone() for name, value in task.network.head.state_dict().items()}
    load_pretrained(task, str(run))
    theirs = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    for name, value in task.state_dict().items():
        if name.startswith(("network.embedding", "network.encoder")):
            assert torch.equal(value, theirs[name]), name
    for name, value in task.network.head.state_dict().items():
        assert torch.equal(value, head[name])


def test_each_member_of_an_ensemble_gets_them(run: Path) -> None:
    task = classifier(members=2, layer_decay=0.5)
    load_pretrained(task, str(run))
    theirs = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    first, second = task.network.members
    for name, value in first.state_dict().items():
        if name.startswith(("embedding", "encoder")):
            assert torch.equal(value, theirs[f"network.{name}"]) and torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.head.linear.weight, second.head.linear.weight)
    rates = layer_rates(task.network, 0.5)
    assert rates[first.embedding.weight] == rates[second.embedding.weight] == 1 / 8
    parts = GradualUnfreezing().parts(task)
    frozen = {p for part in parts for p in part.parameters()}
    assert frozen == {p for name, p in task.named_parameters() if ".encoder." in name or ".embedding." in name}


def test_training_starts_from_them_and_a_resumed_one_needs_them_no_more(run: Path, tmp_path: Path) -> None:
    still = partial(torch.optim.SGD, lr=0.0)
    task = classifier(pretrained=str(run / "checkpoints" / "best.ckpt"), optimizer=still)
    trainer = fit(task)
    theirs = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(task.network.embedding.weight, theirs["network.embedding.weight"])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    other = classifier(pretrained="gone", optimizer=still)
    fit(other, epochs=2, ckpt_path=tmp_path / "last.ckpt")
    assert torch.equal(other.network.embedding.weight, theirs["network.embedding.weight"])


def test_a_run_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="gone does not exist"):
        load_pretrained(classifier(), "gone")


def test_weights_that_do_not_fit_are_named(run: Path) -> None:
    with pytest.raises(UserError, match=r"network\.embedding\.weight is \(50, 16\) here, \(40, 16\) in .*best\.ckpt"):
        load_pretrained(classifier(vocab_size=50), str(run))
    with pytest.raises(UserError, match=r"network\.encoder\.layers\.1\.\S+ is not there here, \(.*\) in"):
        load_pretrained(classifier(layers=1), str(run))


def test_settings_that_no_shape_shows_are_compared() -> None:
    mine = {"class_path": "project.nn.Encoder", "init_args": {"num_heads": 4, "dropout": 0.1}}
    compare_encoders(mine, mine | {"init_args": {"num_heads": 4, "dropout": 0.3}}, "there")
    with pytest.raises(UserError, match=r"model\.encoder\.num_heads is 4 here, 8 in there"):
        compare_encoders(mine, mine | {"init_args": {"num_heads": 8}}, "there")
    with pytest.raises(UserError, match=r"model\.encoder is project\.nn\.Encoder here, mine\.Encoder in there"):
        compare_encoders(mine, {"class_path": "mine.Encoder"}, "there")


def test_tokenizers_are_compared_but_for_the_length() -> None:
    mine = {"truncation": {"max_length": 5}, "model": {"vocab": {"a": 0, "b": 1}}}
    compare_tokenizers(mine, mine | {"truncation": None}, "there")
    with pytest.raises(UserError, match=r"differ in 'model': 1 of its 2 tokens have the same id"):
        compare_tokenizers(mine, mine | {"model": {"vocab": {"a": 0, "c": 1}}}, "there")


def test_lower_layers_learn_more_slowly() -> None:
    task = classifier(layers=3)
    network = task.network
    rates = layer_rates(network, 0.5)
    named = {name: rates.get(p, 1.0) for name, p in network.named_parameters()}
    assert {rate for name, rate in named.items() if name.startswith("embedding")} == {1 / 16}
    for i, expected in enumerate([1 / 8, 1 / 4, 1 / 2]):
        assert {rate for name, rate in named.items() if name.startswith(f"encoder.layers.{i}.")} == {expected}
    assert {rate for name, rate in named.items() if name.startswith(("encoder.norm", "head"))} == {1.0}


def test_the_optimizer_gets_the_rates_and_the_schedule_keeps_them() -> None:
    task = classifier(layers=1, layer_decay=0.5, optimizer=partial(torch.optim.SGD, lr=0.8), warmup_ratio=0.0)
    trainer = fit(task, epochs=1)
    (scheduler,) = trainer.lr_scheduler_configs
    assert sorted(set(scheduler.scheduler.base_lrs)) == [0.2, 0.4, 0.8]
    of = {id(p): group["initial_lr"] for group in trainer.optimizers[0].param_groups for p in group["params"]}
    assert of[id(task.network.embedding.weight)] == 0.2
    assert of[id(task.network.encoder.layers[0].feed_forward.up.weight)] == 0.4
    assert len(of) == len(list(task.parameters()))


def snapshot(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def test_layers_thaw_from_the_top() -> None:
    trained: list[list[bool]] = []

    class Watch(GradualUnfreezing):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_start(trainer, pl_module)
            self.before = [snapshot(part) for part in self.parts(pl_module)]
            self.head = snapshot(pl_module.network.head)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            after = [snapshot(part) for part in self.parts(pl_module)]
            same = [
                [torch.equal(a, b) for a, b in zip(x, y, strict=True)] for x, y in zip(after, self.before, strict=True)
            ]
            trained.append([not all(part) for part in same])
            head = zip(snapshot(pl_module.network.head), self.head, strict=True)
            assert not any(torch.equal(a, b) for a, b in head)

    optimizer = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.5)  # decay must not move what is frozen
    fit(classifier(layers=2, optimizer=optimizer), epochs=4, callbacks=[Watch(1, layers_per_epoch=1)])
    assert trained == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]
    trained.clear()
    fit(classifier(layers=2, optimizer=optimizer), epochs=2, callbacks=[Watch(1, keep_frozen=1)])
    assert trained == [[False] * 3, [True, True, False]]


def test_freezing_survives_a_resume(tmp_path: Path) -> None:
    optimizer = partial(torch.optim.AdamW, lr=1e-2)
    whole = classifier(optimizer=optimizer)
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    fit(whole, epochs=3, callbacks=[GradualUnfreezing(1, 1), saver], enable_checkpointing=True)
    resumed = classifier(optimizer=optimizer)
    fit(resumed, epochs=3, callbacks=[GradualUnfreezing(1, 1)], ckpt_path=tmp_path / "epoch=1.ckpt")
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="layers_per_epoch 1"):
        GradualUnfreezing(layers_per_epoch=0)
