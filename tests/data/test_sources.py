import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from project.data import HubDataset, TableFile
from project.data.sources import Source
from project.errors import UserError


def contents(source: Source, split: str = "train") -> list[tuple[int, str, str]]:
    return list(source.read()[split].itertuples(name=None))


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str | bytes], str]:
    def put(name: str, content: str | bytes) -> str:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(file)

    return put


Put = Callable[[str, str | bytes], str]
EXPECTED = [(1, 'a "red" fox', "3"), (2, "one,\ntwo", "10"), (3, "", "3"), (4, "NA", "10")]


def test_every_format_gives_the_same_table(put: Put, tmp_path: Path) -> None:
    table = pd.DataFrame({"label": [3, 10, 3, 10], "other": [0.5] * 4, "text": [row[1] for row in EXPECTED]})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table.to_parquet(tmp_path / "a.parquet")
    table.set_index("text").to_parquet(tmp_path / "index.parquet")
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.parquet", "index.parquet"):
        assert contents(TableFile(str(tmp_path / name))) == EXPECTED, name


def test_columns_encoding_delimiter_and_quotes_are_configurable(put: Put) -> None:
    file = put("a.csv", 'sentence;class\ncafé;yes\n"quoted;no\n'.encode("latin-1"))
    source = TableFile(file, text="sentence", label="class", encoding="latin-1", delimiter=";", quotes=False)
    assert contents(source) == [(1, "café", "yes"), (2, '"quoted', "no")]


def test_byte_order_mark_blank_lines_and_carriage_returns_are_no_content(put: Put) -> None:
    assert contents(TableFile(put("a.csv", "\ufefftext,label\r\n\r\na,b\r\n\r\n"))) == [(1, "a", "b")]
    jsonl = '\ufeff{"text": "a", "label": "b"}\n\n{"text": "c", "label": "d"}\n'
    assert contents(TableFile(put("a.jsonl", jsonl))) == [(1, "a", "b"), (3, "c", "d")]  # lines, as an editor counts


def test_null_texts_and_long_texts_stay(put: Put) -> None:
    long = "x" * 300_000  # beyond the csv module's default limit
    assert contents(TableFile(put("a.csv", f"text,label\n{long},b\n"))) == [(1, long, "b")]
    jsonl = '{"text": null, "label": "b"}\n{"text": 5, "label": "b"}\n{"label": "b"}'
    assert contents(TableFile(put("a.jsonl", jsonl))) == [(1, "", "b"), (2, "5", "b"), (3, "", "b")]


def test_half_a_surrogate_pair_becomes_a_question_mark(put: Put) -> None:
    assert contents(TableFile(put("a.jsonl", r'{"text": "a\ud800b", "label": 1}'))) == [(1, "a?b", "1")]


def test_integers_survive_a_float_column(put: Put) -> None:
    jsonl = '{"text": "a", "label": 2.0}\n{"text": "b", "label": true}\n{"text": "c", "label": -1}'
    assert [label for _, _, label in contents(TableFile(put("a.jsonl", jsonl)))] == ["2", "True", "-1"]


BAD_FILES: list[tuple[str, str | bytes, str]] = [
    ("a.csv", "", r"a\.csv is empty"),
    ("a.csv", " \n\n", r"a\.csv is empty"),
    ("a.csv", "text,label\n", r"a\.csv holds no rows"),
    ("a.txt", "x", r"ends in '\.txt'; known are \.csv, \.tsv, \.jsonl, \.parquet"),
    ("a.csv", "body,label\nx,y\n", r"a\.csv has no column 'text'; it has body, label"),
    ("a.csv", "text,lable\nx,y\n", r"a\.csv has no column 'label'; it has text, lable; did you mean 'lable'\?"),
    ("a.csv", "text;label\nx;y\n", r"it has text;label; are its fields separated by ';'\? Then set delimiter"),
    ("a.csv", "text;label\nx, y;z\n", r"line 2 has 2 fields, the header 1; are its fields separated by ';'\?"),
    ("a.tsv", "text,label\nx,y\n", r"are its fields separated by ','\? Then set delimiter"),
    ("a.jsonl", '{"text": "a", "class": 1}', r"a\.jsonl has no column 'label'; it has text, class"),
    ("a.csv", "text,text,label\na,b,c\n", r"a\.csv has several columns 'text'"),
    ("a.csv", "text,label\nx,y\ncaf\xe9,y\n".encode("latin-1"), r"a\.csv is not utf-8 \(byte 0xe9 in line 3\)"),
    ("a.csv", "text,label\nx,y\na,b,c\n", r"a\.csv: line 3 has 3 fields, the header 2"),
    ("a.csv", "text,label\nx\n", r"a\.csv: line 2 has 1 fields, the header 2"),
    ("a.csv", 'text,label\nx,y\n"open,y\n', r"a\.csv: line \d: unexpected end of data; set quotes to false"),
    ("a.tsv", 'text\tlabel\n"He" said\ty\n', r"a\.tsv: line 2: .*expected after.*; set quotes to false"),
    ("a.csv", "text,label\nx,y\nz,\n", r"a\.csv: row 2 has no 'label'; label or remove it"),
    ("a.csv", "text,label\nx,\nz,\nu, \n", r"row 1 has no 'label', nor have 2 more"),
    ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": null}', r"row 2 has no 'label'"),
    ("a.jsonl", '{"text": "a", "label": "x"}\n\n{"text": "b"}', r"row 3 has no 'label'"),
    ("a.jsonl", '{"text": "a", "label": 0.5}', r"row 1 has the 'label' 0\.5; labels are strings or integers"),
    ("a.jsonl", '{"text": "a", "label": ["x"]}', r"row 1 has the 'label' \['x'\]; labels are"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": ', r"a\.jsonl: line 2 is not JSON: .* at column \d+"),
    ("a.jsonl", '["a", 1]', r"a\.jsonl: line 1 is not a JSON object"),
    ("a.parquet", "no parquet", r"a\.parquet is not a readable Parquet file"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_files_give_one_line(put: Put, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        TableFile(put(name, content)).read()
    assert "\n" not in str(raised.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(UserError, match=re.escape(f"cannot read {path}")):
            TableFile(str(path)).fingerprint()
    with pytest.raises(UserError, match=r"cannot read .*none\.csv: No such file"):
        TableFile(str(tmp_path / "none.csv")).read()
    file = tmp_path / "a.csv"
    file.write_text("text,label\na,b\n")
    with pytest.raises(UserError, match="encoding 'utf-9' is unknown"):
        TableFile(str(file), encoding="utf-9").read()


def test_fingerprint_follows_content_and_settings_but_not_the_place(put: Put, tmp_path: Path) -> None:
    file = put("a.csv", "text,label\na,b\n")
    before = TableFile(file).fingerprint()
    (tmp_path / "other").mkdir()
    assert TableFile(put("other/b.csv", "text,label\na,b\n")).fingerprint() == before
    assert TableFile(file, text="label").fingerprint() != before
    assert TableFile(file, test=file).fingerprint() != TableFile(file, val=file).fingerprint()
    put("a.csv", "text,label\na,c\n")
    assert TableFile(file).fingerprint() != before


# HubDataset, on folders so that no network is needed.


@pytest.fixture
def folder(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (tmp_path / "set").mkdir()
    put("set/train.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}')
    put("set/validation.jsonl", '{"text": "c", "label": 1}')
    return str(tmp_path / "set")


def test_hub_dataset_takes_splits_by_their_names(folder: str) -> None:
    tables = HubDataset(folder).read()
    assert {name: list(table.itertuples(name=None)) for name, table in tables.items()} == {
        "train": [(1, "a", "1"), (2, "b", "0")],
        "val": [(1, "c", "1")],
    }
    assert tables["val"].attrs["where"] == f"{folder}/validation"
    chosen = HubDataset(folder, splits={"train": "train", "test": "validation"}).read()
    assert list(chosen) == ["train", "test"]


def test_hub_dataset_errors(folder: str) -> None:
    with pytest.raises(UserError, match=r"has no split 'dev'; it has train, validation; see splits"):
        HubDataset(folder, splits={"train": "train", "val": "dev"}).read()
    with pytest.raises(UserError, match=r"train has no column 'body'; it has text, label"):
        HubDataset(folder, text="body").read()
    with pytest.raises(UserError, match=r"datasets cannot load '.*nowhere'"):
        HubDataset(f"{folder}/nowhere").read()


def test_hub_dataset_uses_class_names_and_refuses_withheld_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    rows: dict[str, list[Any]] = {"text": ["a", "b"], "label": [1, 0]}
    loaded = datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows, features)})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    assert contents(HubDataset("any")) == [(1, "a", "pos"), (2, "b", "neg")]
    loaded["test"] = datasets.Dataset.from_dict(rows | {"label": [1, -1]}, features)
    with pytest.raises(UserError, match=r"any/test: row 2 has no 'label'"):
        HubDataset("any").read()


def test_hub_dataset_fingerprint_follows_a_folders_files(folder: str, put: Put) -> None:
    before = HubDataset(folder).fingerprint()
    assert HubDataset(folder).fingerprint() == before
    put("set/train.jsonl", json.dumps({"text": "z", "label": 1}))
    assert HubDataset(folder).fingerprint() != before
    assert HubDataset("name", revision="a").fingerprint() != HubDataset("name", revision="b").fingerprint()
