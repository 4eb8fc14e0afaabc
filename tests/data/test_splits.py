from collections import Counter

import numpy as np
import pandas as pd
import pytest

from project.data.splits import contradictions, deduplicate, evenly, make_splits, split
from project.errors import UserError

SHARES = {"val": 0.1, "test": 0.1}


def table(texts: list[str], labels: list[str] | None = None) -> pd.DataFrame:
    frame = pd.DataFrame({"text": texts, "label": labels or ["a"] * len(texts)}, index=range(1, len(texts) + 1))
    frame.attrs["where"] = "file"
    return frame


def by_class(sizes: dict[str, int]) -> pd.DataFrame:
    labels = [label for label, size in sizes.items() for _ in range(size)]
    return table([f"text {i}" for i in range(len(labels))], labels)


def test_evenly() -> None:
    for total, count in ((10, 3), (7, 7), (5, 0), (100, 33), (0, 0)):
        places = np.flatnonzero(evenly(total, count))
        assert len(places) == count
        assert count < 2 or np.ptp(np.diff(places)) <= 1
    assert evenly(3, 5).tolist() == [True] * 3


def test_sizes_are_exact_and_classes_in_proportion() -> None:
    parts = split(by_class({"a": 500, "b": 401, "c": 77, "d": 20, "e": 2, "f": 1}), SHARES, seed=3)
    assert {name: len(part) for name, part in parts.items()} == {"train": 801, "val": 100, "test": 100}
    assert sorted(text for part in parts.values() for text in part["text"]) == sorted(f"text {i}" for i in range(1001))
    for name in ("val", "test"):
        counts = Counter(parts[name]["label"])
        for label, size in (("a", 500), ("b", 401), ("c", 77), ("d", 20), ("e", 2), ("f", 1)):
            assert abs(counts[label] - size / 10) <= 2, (name, label)
    assert set(parts["train"]["label"]) == set("abcdef")


def test_the_split_depends_on_its_seed_alone() -> None:
    data = by_class({"a": 300, "b": 100})
    first, again, other = (split(data, SHARES, seed)["test"].index.tolist() for seed in (0, 0, 1))
    assert first == again
    assert len(set(first) & set(other)) < 15  # 4 expected of 40


def test_rows_keep_their_numbers() -> None:
    data = by_class({"a": 30})
    for part in split(data, SHARES, 0).values():
        assert (part["text"] == data.loc[part.index, "text"]).all()
        assert part.index.is_monotonic_increasing


def test_texts_that_differ_in_case_space_and_unicode_form_only_are_the_same() -> None:
    train = table(["A  cat", "a cat ", "caf\u00e9", "cafe\u0301", "dog", "", ""], list("xyxyxyx"))
    kept = deduplicate({"train": train})["train"]
    assert kept["text"].tolist() == ["A  cat", "caf\u00e9", "dog", "", ""]
    assert kept["label"].tolist() == ["x", "x", "x", "y", "x"]
    assert kept.index.tolist() == [1, 3, 5, 6, 7]


def test_texts_with_more_than_one_label_are_counted_and_shown() -> None:
    train = table(["A cat", "a  cat", "dog", "", "", "cow", "cow", "dog"], list("xyxxyxxx"))
    assert contradictions({"train": train}) == (
        "1 texts stand with more than one label, such as train row 1 'x', train row 2 'y'"
    )
    with_test = contradictions({"train": train, "test": table(["DOG"], ["z"])})
    assert with_test is not None and with_test.startswith("2 texts stand")
    assert contradictions({"train": train.drop(2)}) is None


def test_given_test_stays_whole_and_the_others_give_way() -> None:
    tables = {
        "train": table(["one", "two", "three", "four"]),
        "val": table(["Two", "five", "five", "six"]),
        "test": table(["three", "six", "six"]),
    }
    kept, dropped = make_splits(tables, SHARES, 0)
    assert {name: part["text"].tolist() for name, part in kept.items()} == {
        "train": ["one", "four"],
        "val": ["Two", "five", "five"],
        "test": ["three", "six", "six"],
    }
    assert dropped == 3


@pytest.mark.parametrize("given", ["val", "test"])
def test_a_missing_split_is_cut_from_train(given: str) -> None:
    tables = {"train": by_class({"a": 40, "b": 60}), given: table(["x", "y"])}
    kept, dropped = make_splits(tables, SHARES, 0)
    missing = {"val": "test", "test": "val"}[given]
    assert (len(kept["train"]), len(kept[missing]), kept[given]["text"].tolist(), dropped) == (90, 10, ["x", "y"], 0)


def test_all_given() -> None:
    tables = {"train": table(["a"]), "val": table(["b"]), "test": table(["c"])}
    kept, _ = make_splits(tables, SHARES, 0)
    assert [kept[name]["text"].item() for name in ("train", "val", "test")] == ["a", "b", "c"]


def test_nothing_left() -> None:
    with pytest.raises(UserError, match="file: 3 different texts in 2 classes are too few to cut val from"):
        split(by_class({"a": 2, "b": 1}), SHARES, 0)
    with pytest.raises(UserError, match="file: 10 different texts in 10 classes are too few to cut val from"):
        split(by_class({str(i): 1 for i in range(10)}), SHARES, 0)
    with pytest.raises(UserError, match="file: every text is also in another split"):
        deduplicate({"train": table(["a", "b"]), "test": table(["B", "A"])})
