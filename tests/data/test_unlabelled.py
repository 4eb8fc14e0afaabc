"""Texts without labels, and none that a later run is tested on."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from project.data import Source, TextClassificationData, TextLines, WithoutHeldOut
from project.errors import UserError


class Given(Source):
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def fingerprint(self) -> str:
        return "|".join(self.texts)

    def read(self) -> dict[str, pd.DataFrame]:
        table = pd.DataFrame({"text": self.texts, "label": "x"}, index=range(1, len(self.texts) + 1))
        table.attrs["where"] = "given"
        return {"train": table}


@pytest.fixture
def config(table: Path, tmp_path: Path) -> Path:
    data = {
        "class_path": "project.data.TextClassificationData",
        "init_args": {
            "source": {"class_path": "project.data.TableFile", "init_args": {"train": str(table)}},
            "vocab_size": 300,
            "cache_dir": str(tmp_path / "cache"),
        },
    }
    file = tmp_path / "classify.yaml"
    file.write_text(yaml.safe_dump({"data": data, "model": {"class_path": "any"}}))
    return file


def test_lines_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\n\n  two  \n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("drei", encoding="utf-8")
    source = TextLines([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    table = source.read()["train"]
    assert table["text"].tolist() == ["one text", "two", "drei"] and set(table["label"]) == {"text"}
    before = source.fingerprint()
    (tmp_path / "b.txt").write_text("vier", encoding="utf-8")
    assert source.fingerprint() != before


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read .*: No such file"), (b"\n\n", "no line with text"), (b"\xff", "utf-8")]
)
def test_bad_files_are_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        TextLines(str(tmp_path / "a.txt")).read()


def test_lines_make_batches(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"text number {i}" for i in range(50)), encoding="utf-8")
    data = TextClassificationData(TextLines(str(tmp_path / "a.txt")), cache_dir=str(tmp_path / "cache"))
    data.setup()
    assert sum(len(batch["ids"]) for batch in data.train_dataloader()) == 40


def test_held_out_texts_are_left_out(config: Path) -> None:
    other = WithoutHeldOut(Given(["any"]), str(config)).other
    train, val, test = (other.splits[name].texts for name in ("train", "val", "test"))
    texts = [
        train[0],
        val[0],
        f"{val[1].upper()}  ",
        f'{test[0]}; "an example; of two parts"',
        f'something else; {test[1]}; "an example"',
    ]
    kept = WithoutHeldOut(Given(texts), str(config)).read()["train"]
    assert kept["text"].tolist() == [texts[0], texts[4]]
    assert kept.index.tolist() == [1, 5]


def test_the_fingerprint_is_that_of_both(config: Path) -> None:
    before = WithoutHeldOut(Given(["a"]), str(config)).fingerprint()
    assert WithoutHeldOut(Given(["a"]), str(config)).fingerprint() == before
    assert WithoutHeldOut(Given(["b"]), str(config)).fingerprint() != before
    config.write_text(config.read_text().replace("vocab_size: 300", "split_seed: 5"))
    assert WithoutHeldOut(Given(["a"]), str(config)).fingerprint() != before


def test_a_configuration_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.yaml"):
        WithoutHeldOut(Given(["a"]), str(tmp_path / "none.yaml")).fingerprint()
    (tmp_path / "other.yaml").write_text("data: {class_path: project.data.DigitsData}")
    with pytest.raises(UserError, match="does not configure TextClassificationData"):
        WithoutHeldOut(Given(["a"]), str(tmp_path / "other.yaml")).fingerprint()
