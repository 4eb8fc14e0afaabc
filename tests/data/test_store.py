import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from project.data.store import TokenDataset, encode_batches, write
from project.data.tokenizer import train_tokenizer

ROWS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15], [16]]
LABELS = [2, 0, 1, 1, 2]
TEXTS = ["five six", "eight", "", "naïve 猫", "last"]


@pytest.fixture
def dataset(tmp_path: Path) -> TokenDataset:
    values = np.array([i for row in ROWS for i in row], np.int32)
    offsets = np.cumsum([0, *map(len, ROWS)], dtype=np.int64)
    write(tmp_path / "a.arrow", values, offsets, np.array(LABELS, np.int32), TEXTS)
    return TokenDataset.open(tmp_path / "a.arrow")


def reference(rows: list[int]) -> dict[str, torch.Tensor]:
    """One example at a time."""
    longest = max(len(ROWS[i]) for i in rows)
    return {
        "tokens": torch.tensor([ROWS[i] + [0] * (longest - len(ROWS[i])) for i in rows]),
        "padding_mask": torch.tensor([[t < len(ROWS[i]) for t in range(longest)] for i in rows]),
        "labels": torch.tensor([LABELS[i] for i in rows]),
        "ids": torch.tensor(rows),
    }


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [4, 2, 0], [1], [1, 4], [3, 3]])
def test_a_batch_equals_the_reference(dataset: TokenDataset, rows: list[int]) -> None:
    batch, expected = dataset[rows], reference(rows)
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(batch[key], value), key
        assert batch[key].dtype == value.dtype, key


def test_texts_lengths_and_a_single_row(dataset: TokenDataset) -> None:
    assert dataset.texts == TEXTS
    assert dataset.lengths.tolist() == [3, 1, 5, 2, 1]
    assert len(dataset) == 5
    assert torch.equal(dataset[3]["tokens"], torch.tensor([[14, 15]]))


def test_a_batch_is_a_copy(dataset: TokenDataset) -> None:
    for value in dataset[[0, 1]].values():
        value.zero_()
    assert torch.equal(dataset[[0, 1]]["tokens"], reference([0, 1])["tokens"])


def test_pickled_it_is_a_path_and_no_copy(dataset: TokenDataset) -> None:
    data = pickle.dumps(dataset)
    assert len(data) < 500
    assert torch.equal(pickle.loads(data)[[0, 2]]["tokens"], reference([0, 2])["tokens"])


def test_batches_for_prediction_hold_every_text_once_and_no_label() -> None:
    texts = ["the cat", "the cat sat on the mat", "", "cat", "mat " * 30]
    tokenizer = train_tokenizer(texts * 2, 60)
    batches = encode_batches(texts, tokenizer, max_length=16, tokens_per_batch=12)
    assert sorted(i for batch in batches for i in batch["ids"].tolist()) == [0, 1, 2, 3, 4]
    assert len(batches) > 1
    for batch in batches:
        assert set(batch) == {"tokens", "padding_mask", "ids"}
        for place, i in enumerate(batch["ids"].tolist()):
            real = batch["tokens"][place][batch["padding_mask"][place]].tolist()
            assert real == (tokenizer.encode(texts[i]).ids or [1])
    assert encode_batches([], tokenizer, 16, 12) == []


def test_the_hash_tells_texts_labels_and_class_names_not_the_encoding(tmp_path: Path) -> None:
    def sha256(texts: list[str], labels: list[int], names: str = "abc", first: int = 5) -> str:
        values, offsets = np.arange(first, first + len(texts), dtype=np.int32), np.arange(len(texts) + 1)
        write(tmp_path / "b.arrow", values, offsets, np.array(labels, np.int32), texts)
        return TokenDataset.open(tmp_path / "b.arrow").sha256(list(names))

    expected = sha256(TEXTS, LABELS)
    assert sha256(TEXTS, LABELS, first=9) == expected
    others = [
        sha256([*TEXTS[:-1], "lasT"], LABELS),
        sha256(TEXTS, [*LABELS[:-1], 0]),
        sha256(TEXTS, LABELS, "abd"),
        sha256(["five sixe", "ight", *TEXTS[2:]], LABELS),
        sha256(["", ""], [0, 0]),
    ]
    assert len({expected, *others}) == 6
    values, offsets = np.zeros(5, np.int32), np.arange(6)
    assert TokenDataset(values, offsets, np.array(LABELS, np.int32), TEXTS).sha256(list("abc")) == expected
