import json
import logging
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from project.data import Source, TableFile, TextClassificationData
from project.data.batching import processes
from project.data.text import number_labels
from project.errors import UserError

Make = Callable[..., TextClassificationData]
Rows = list[tuple[str, object]]

A, B, C = [("a cat", "x"), ("a dog", "y"), ("a cow", "x")], [("a bird", "y")], [("a fish", "x")]


def prepared(data: TextClassificationData) -> TextClassificationData:
    data.prepare_data()
    data.setup("fit")
    return data


def loaders(data: TextClassificationData) -> dict[str, Any]:
    return {"train": data.train_dataloader(), "val": data.val_dataloader(), "test": data.test_dataloader()}


# What comes out


def test_every_text_is_in_one_split_with_its_label_and_tokens(make: Make, rows: Rows) -> None:
    data = prepared(make(rows, tokens_per_batch=256))
    assert data.labels == ["animal", "food", "plant"]
    found = {}
    for name, loader in loaders(data).items():
        for batch in loader:
            assert batch["tokens"].numel() <= 256
            assert batch["tokens"].max() < data.vocab_size
            for tokens, mask, label, i in zip(
                *(batch[k] for k in ("tokens", "padding_mask", "labels", "ids")), strict=True
            ):
                text = data.splits[name].texts[int(i)]
                assert tokens[mask].tolist() == data.tokenizer.encode(text).ids
                found[text] = data.labels[label]
    assert found == dict(rows)
    assert [len(data.splits[name]) for name in ("train", "val", "test")] == [240, 30, 30]
    assert data.class_counts == [Counter(data.texts()["train"][1])[label] for label in data.labels]
    assert data.statistics["unknown_share"]["train"] == 0
    texts, labels = data.texts()["test"]
    assert [dict(rows)[text] for text in texts] == labels


def test_the_same_configuration_gives_the_same_bytes(make: Make, rows: Rows, tmp_path: Path) -> None:
    one, two = (make(rows, cache_dir=str(tmp_path / name)) for name in "ab")
    assert one.folder.name == two.folder.name
    files = sorted(path.name for path in one.folder.iterdir())
    assert files == ["labels.json", "statistics.json", "test.arrow", "tokenizer.json", "train.arrow", "val.arrow"]
    for name in files:
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes(), name


def test_seeds(make: Make, rows: Rows) -> None:
    base = prepared(make(rows, tokens_per_batch=256))
    order = prepared(make(rows, tokens_per_batch=256, seed=1))
    split = prepared(make(rows, tokens_per_batch=256, split_seed=1))
    assert order.texts() == base.texts()
    assert list(order.train_dataloader().sampler) != list(base.train_dataloader().sampler)
    assert set(split.texts()["test"][0]) != set(base.texts()["test"][0])


def test_given_splits_stay_as_they_are(make: Make) -> None:
    data = prepared(make(A, B, C))
    assert data.texts() == {
        name: ([text for text, _ in part], [label for _, label in part])
        for name, part in (("train", A), ("val", B), ("test", C))
    }


def test_long_and_empty_texts(make: Make, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "project")
    data = prepared(make([*rows, ("", "food"), ("cat " * 50, "animal")], max_length=12))
    cut = sum(len(text.split()) > 12 for part in data.texts().values() for text in part[0])
    assert f"{sum(data.statistics['cut'].values())} texts cut at 12 tokens" in caplog.text
    assert sum(data.statistics["cut"].values()) >= cut > 50
    lengths = np.concatenate([dataset.lengths for dataset in data.splits.values()])
    assert (lengths.min(), lengths.max()) == (1, 12)
    empty = [d[d.texts.index("")]["tokens"].tolist() for d in data.splits.values() if "" in d.texts]
    assert empty == [[[1]]]


def test_one_line_of_statistics_once(make: Make, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "project")
    data = make([*rows, rows[0]])
    str(data)  # Lightning's own description of a data module makes its loaders
    prepared(data).setup("test")
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("data: ")]
    assert lines == [
        f"data: train 240, val 30, test 30 texts (1 repeated ones dropped), 3 classes, vocabulary {data.vocab_size}, "
        f"{data.statistics['unknown_share']['test']:.2%} of test tokens unknown, 0 texts cut at 128 tokens"
    ]


def test_add_cls(make: Make, rows: Rows) -> None:
    batch = next(iter(prepared(make(rows, add_cls=True)).train_dataloader()))
    assert (batch["tokens"][:, 0] == 2).all()


# Labels


def test_integers_are_sorted_by_value(make: Make) -> None:
    rows = [(f"text {i} {j}", j) for i in range(10) for j in (10, 9, 2)]
    assert make(rows).labels == ["2", "9", "10"]


def test_given_names_fix_the_order(make: Make) -> None:
    data = prepared(make(A, B, C, labels=["y", "x"]))
    assert data.splits["train"].labels is not None
    assert data.splits["train"].labels.tolist() == [1, 0, 1]


def test_integers_are_places_among_given_names(make: Make) -> None:
    rows = [("a", 1), ("b", 0), ("c", 1)]
    data = prepared(make(rows, [("d", 0)], [("e", 1)], labels=["bad", "good"]))
    assert data.texts()["train"][1] == ["good", "bad", "good"]
    assert number_labels(TableFile_tables(make, rows), ["0", "1"])[1]["train"].tolist() == [1, 0, 1]


def TableFile_tables(make: Make, rows: Rows) -> Any:
    return make(rows).source.read()


BAD_LABELS: list[tuple[Rows, Rows, list[str] | None, str]] = [
    (
        A,
        [("a bird", "y"), ("a bee", "z")],
        None,
        r"val\.jsonl: row 2 \(val\) has the label 'z', which training does not",
    ),
    (A, [("a bee", "z")], ["x", "y"], r"val\.jsonl: row 1 has the unknown label 'z'; known are x, y"),
    (
        A,
        [("a bee", "z")],
        ["x", "y", "z"],
        r"val\.jsonl: row 1 \(val\) has the label 'z', which training does not have",
    ),
    (A, B, ["x"], r"train\.jsonl: row 2 has the unknown label 'y'; known are x"),
    ([("a", 2), ("b", 0)], [("c", 0)], ["no", "yes"], r"train\.jsonl: row 1 has the unknown label '2'; known are 0, 1"),
    (A, B, ["x", "y", "x"], r"labels names 'x' twice"),
]


@pytest.mark.parametrize(("train", "val", "labels", "message"), BAD_LABELS)
def test_bad_labels(make: Make, train: Rows, val: Rows, labels: list[str] | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(train, val, [("zebra", train[0][1])], labels=labels).prepare_data()


def test_bad_options(make: Make) -> None:
    for options, message in (
        ({"val_share": 0.0}, r"val_share 0\.0 and test_share 0\.1 must be positive"),
        ({"val_share": 0.5, "test_share": 0.5}, "sum to less than 1"),
        ({"max_length": 1}, "max_length 1 must be 2 at least"),
        ({"max_length": 200, "tokens_per_batch": 100}, "tokens_per_batch 100 at most"),
    ):
        with pytest.raises(UserError, match=message):
            make(A, **options)


# The cache


def test_a_warm_start_reads_no_source(make: Make, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make(rows).labels
    monkeypatch.setattr(TableFile, "read", lambda self: pytest.fail("the source was read again"))
    data = prepared(make(rows))
    assert data.labels == expected
    assert next(iter(data.train_dataloader()))["tokens"].shape[0] > 1


def test_a_warm_start_imports_neither_pandas_nor_datasets(make: Make, rows: Rows, tmp_path: Path) -> None:
    make(rows).prepare_data()
    script = f"""
import sys, logging
from project.data import TableFile, TextClassificationData
logging.basicConfig(level=logging.INFO)
data = TextClassificationData(TableFile({str(tmp_path / "train.jsonl")!r}), cache_dir={str(tmp_path / "cache")!r})
data.prepare_data(), data.setup(), data.labels, data.vocab_size, data.tokenizer, next(iter(data.train_dataloader()))
print([name for name in ("pandas", "datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert "preparing" not in done.stderr


def test_changed_content_or_settings_are_prepared_anew(make: Make, rows: Rows) -> None:
    before = make(rows)
    assert len(before.splits["train"]) == 240
    after = make([*rows, *(("new " + text, label) for text, label in rows)])
    assert len(after.splits["train"]) == 480
    assert after.folder != before.folder
    folders = {
        make(rows, **options).folder for options in ({}, {"max_length": 20}, {"vocab_size": 90}, {"val_share": 0.2})
    }
    assert len(folders) == 4
    assert make(rows, tokens_per_batch=999, seed=5, num_workers=1).folder == before.folder


def test_a_given_tokenizer_is_used_and_its_content_is_what_counts(make: Make, rows: Rows, tmp_path: Path) -> None:
    make(rows, vocab_size=70).tokenizer.save(str(tmp_path / "t.json"))
    data = make(rows, tokenizer=str(tmp_path / "t.json"))
    assert data.vocab_size == 70
    shutil.copyfile(make(rows, vocab_size=80).folder / "tokenizer.json", tmp_path / "t.json")
    assert make(rows, tokenizer=str(tmp_path / "t.json")).vocab_size == 80
    with pytest.raises(UserError, match="is no tokenizer"):
        make(rows, tokenizer=str(tmp_path / "none.json"))


def test_a_run_folder_gives_the_same_data_from_the_same_cache(
    make: Make, rows: Rows, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "project")
    data, run = prepared(make(rows)), tmp_path / "run"
    data.save_assets(run)
    assert json.loads((run / "labels.json").read_text()) == data.labels
    again = prepared(make(rows, tokenizer=str(run), labels=data.labels))
    assert again.texts() == data.texts()
    assert again.tokenizer.to_str() == data.tokenizer.to_str()
    assert caplog.text.count("preparing the data once") == 1
    shutil.rmtree(data.folder)  # whoever tidies up the cache leaves a dangling alias
    assert prepared(make(rows, tokenizer=str(run), labels=data.labels)).texts() == data.texts()


def both(work: Callable[[int], object]) -> list[Any]:
    """What `work` returns for 0 and for 1, in two processes at once. Forked, they need not import everything again."""
    context = multiprocessing.get_context("fork")
    barrier, pipes = context.Barrier(2), [context.Pipe() for _ in range(2)]

    def run(rank: int) -> None:
        barrier.wait()
        pipes[rank][1].send(work(rank))

    for rank in range(2):
        context.Process(target=run, args=(rank,), daemon=True).start()
    assert all(receiver.poll(60) for receiver, _ in pipes), "a process hangs or has failed"
    return [receiver.recv() for receiver, _ in pipes]


def test_two_processes_at_once_prepare_one_whole_folder(
    make: Make, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = multiprocessing.get_context("fork").Value("i", 0)
    read = TableFile.read

    def slow_read(self: TableFile) -> Any:
        with reads:
            reads.value += 1
        time.sleep(0.5)  # the other process arrives meanwhile
        return read(self)

    monkeypatch.setattr(TableFile, "read", slow_read)
    data = make(rows)

    def work(rank: int) -> object:
        prepared(data)
        return str(data.folder), [batch["ids"].tolist() for batch in data.train_dataloader()]

    one, two = both(work)
    assert one == two
    assert sum(map(len, one[1])) == 240
    assert reads.value == 1
    left = [path for path in (tmp_path / "cache").iterdir() if path.is_dir() and not path.is_symlink()]
    assert [str(path) for path in left] == [one[0]]


class Failing(Source):
    def fingerprint(self) -> str:
        return "failing"

    def read(self) -> Any:
        raise RuntimeError("lost connection")


def test_a_failed_preparation_leaves_nothing_that_counts_as_done(make: Make, rows: Rows, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost connection"):
            TextClassificationData(Failing(), cache_dir=str(tmp_path / "cache")).prepare_data()
    with pytest.raises(UserError):
        make(A, [("z", "z")], cache_dir=str(tmp_path / "cache")).prepare_data()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the data cache .*file/cache: Not a directory; see cache_dir"):
        make(A, B, C, cache_dir=str(tmp_path / "file" / "cache")).prepare_data()


def test_a_forked_process_can_tokenize_and_says_nothing(
    make: Make, rows: Rows, capfd: pytest.CaptureFixture[str]
) -> None:
    data = prepared(make(rows, num_workers=2))  # has used the library's threads, which do not survive a fork
    texts = data.texts()["train"][0]
    expected = [encoding.ids for encoding in data.tokenizer.encode_batch(texts)]
    assert both(lambda _: [encoding.ids for encoding in data.tokenizer.encode_batch(texts)]) == [expected] * 2
    assert sum(len(batch["ids"]) for batch in data.train_dataloader()) == 240
    assert capfd.readouterr().err == ""


# In the hands of Lightning


class Recorder(LightningModule):
    """Learns nothing; notes the rows of every training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, list[int]]] = []

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        self.seen.append((self.current_epoch, batch["ids"].tolist()))
        return self.weight.sum()

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        pass

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return batch["ids"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(folder: Path, **options: Any) -> Trainer:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "max_epochs": 3,
    }
    return Trainer(**({"enable_checkpointing": False} | quiet | options))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_run_sees_what_the_whole_run_sees(make: Make, rows: Rows, tmp_path: Path, workers: int) -> None:
    def data() -> LightningDataModule:
        return make(rows, tokens_per_batch=256, num_workers=workers)

    whole = Recorder()
    every = ModelCheckpoint(
        tmp_path / "all", "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False
    )
    trainer(tmp_path, callbacks=[every], enable_checkpointing=True, val_check_interval=5).fit(whole, data())
    per_epoch = len(whole.seen) // 3
    epochs = [[ids for epoch, ids in whole.seen if epoch == e] for e in range(3)]
    for batches in epochs:
        assert sorted(i for ids in batches for i in ids) == list(range(240))
    assert epochs[0] != epochs[1] != epochs[2]

    steps = [2, per_epoch, per_epoch + 3, 2 * per_epoch] if workers == 0 else [per_epoch + 3]
    for step in steps:
        resumed = Recorder()
        path = tmp_path / "all" / f"step={step}.ckpt"
        trainer(tmp_path, val_check_interval=5).fit(resumed, data(), ckpt_path=path, weights_only=True)
        assert resumed.seen == whole.seen[step:], step


def test_a_short_epoch_does_not_shift_the_next_after_a_resume(make: Make, rows: Rows, tmp_path: Path) -> None:
    whole, resumed = Recorder(), Recorder()
    last = ModelCheckpoint(tmp_path / "last", "{epoch}", save_top_k=-1)
    limited: dict[str, Any] = {"limit_train_batches": 3}
    trainer(tmp_path, callbacks=[last], enable_checkpointing=True, **limited).fit(
        whole, make(rows, tokens_per_batch=256)
    )
    path = tmp_path / "last" / "epoch=1.ckpt"
    trainer(tmp_path, **limited).fit(resumed, make(rows, tokens_per_batch=256), ckpt_path=path, weights_only=True)
    assert resumed.seen == whole.seen[6:]


def test_overfitting_repeats_the_same_batches_without_a_warning(
    make: Make, rows: Rows, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model = Recorder()
    trainer(tmp_path, overfit_batches=2, log_every_n_steps=1).fit(model, make(rows, tokens_per_batch=256))
    assert [ids for _, ids in model.seen[:2]] == [ids for _, ids in model.seen[2:4]]
    assert all(len(ids) > 1 for _, ids in model.seen)
    assert not [warning for warning in recwarn if "overfit" in str(warning.message)]


def test_prediction_covers_a_split_once(make: Make, rows: Rows, tmp_path: Path) -> None:
    data = prepared(make(rows, tokens_per_batch=256))
    outputs: Any = trainer(tmp_path).predict(Recorder(), data.test_dataloader())
    assert sorted(torch.cat(outputs).tolist()) == list(range(30))


def test_two_processes_share_every_epoch_and_every_evaluation(make: Make, rows: Rows, tmp_path: Path) -> None:
    data = prepared(make(rows, tokens_per_batch=256))

    def work(rank: int) -> object:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=2)
        ids = {name: [batch["ids"].tolist() for batch in loader] for name, loader in loaders(data).items()}
        dist.destroy_process_group()
        return ids

    ranks = both(work)
    for name, size in (("train", 240), ("val", 30), ("test", 30)):
        assert len(ranks[0][name]) == len(ranks[1][name])
        assert sorted(i for ids in ranks for batch in ids[name] for i in batch) == list(range(size))


def test_processes_that_share_a_model_get_the_same_batches() -> None:
    """Under tensor parallelism the strategy knows of fewer data-parallel groups than there are processes."""
    fake = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 2, "rank": 1, "more": 0})
    assert processes(fake) == {"num_replicas": 2, "rank": 1}
    assert processes(SimpleNamespace(distributed_sampler_kwargs=None)) == {"num_replicas": 1, "rank": 0}
