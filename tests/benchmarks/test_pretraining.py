"""Samples hold every class, sizes are exact, and the table shows mean and spread."""

from benchmarks.pretraining import choose, table


def test_a_sample_has_its_size_every_class_and_no_row_twice() -> None:
    labels = ["common"] * 90 + ["rare"] + ["other"] * 9
    rows = choose(labels, 20, seed=0)
    assert len(rows) == len(set(rows)) == 20
    assert {labels[i] for i in rows} == set(labels)
    assert rows == choose(labels, 20, seed=0) != choose(labels, 20, seed=1)


def test_classes_keep_their_shares() -> None:
    labels = ["a"] * 8000 + ["b"] * 2000
    share = sum(labels[i] == "b" for i in choose(labels, 1000, seed=0)) / 1000
    assert abs(share - 0.2) < 0.04


def test_the_table_has_mean_and_standard_deviation() -> None:
    runs = [{"ours": {"accuracy": value, "macro F1": 0.5}} for value in (0.6, 0.7, 0.8)]
    assert table({"1000": runs}).splitlines()[2] == "| 1000 | ours | 0.700 ± 0.100 | 0.500 ± 0.000 |"
