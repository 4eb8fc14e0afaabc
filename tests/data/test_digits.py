"""The digits: every image once, in the same split, as rows that an encoder can take for tokens."""

import sys

import pytest
import torch
from sklearn.datasets import load_digits

from project.data import DigitsData
from project.errors import UserError


def test_every_image_is_in_one_split_and_digits_are_shared_out_evenly() -> None:
    data = DigitsData()
    data.setup()
    splits = data.splits
    images = torch.cat([splits[name].images for name in ("train", "val", "test")])
    assert sorted(map(tuple, images.flatten(1).tolist())) == sorted(map(tuple, (load_digits().data / 8 - 1).tolist()))
    assert [len(splits[name]) for name in ("train", "val", "test")] == [1258, 179, 360]
    assert max(abs(n - 36) for n in splits["test"].digits.bincount().tolist()) <= 2


def test_a_batch_holds_the_images_of_its_ids() -> None:
    data = DigitsData(batch_size=50)
    batches = list(data.train_dataloader())
    assert max(len(batch["ids"]) for batch in batches) == 50
    ids = torch.cat([batch["ids"] for batch in batches])
    assert ids.sort().values.tolist() == list(range(1258))
    for batch in batches:
        assert torch.equal(batch["tokens"], data.splits["train"].images[batch["ids"]])
        assert torch.equal(batch["labels"], data.splits["train"].digits[batch["ids"]])
        assert batch["padding_mask"].shape == (len(batch["ids"]), 8) and batch["padding_mask"].all()


def test_seeds_are_those_of_order_and_split() -> None:
    def order(**seeds: int) -> list[int]:
        return [i for batch in DigitsData(**seeds).train_dataloader() for i in batch["ids"].tolist()]

    assert order() == order() != order(seed=1)
    assert not torch.equal(DigitsData().splits["test"].images, DigitsData(split_seed=1).splits["test"].images)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match=r"scikit-learn: pip install -e '\.\[demo\]'"):
        DigitsData().setup()


def test_facts_give_size_and_content_of_each_split() -> None:
    splits = DigitsData().facts()["splits"]
    assert {name: facts["examples"] for name, facts in splits.items()} == {"train": 1258, "val": 179, "test": 360}
    assert len({facts["sha256"] for facts in splits.values()}) == 3
    assert splits == DigitsData(seed=3).facts()["splits"] != DigitsData(split_seed=1).facts()["splits"]
