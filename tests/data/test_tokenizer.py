from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from project.data.store import encode
from project.data.tokenizer import load_tokenizer, train_tokenizer, unknown_id
from project.errors import UserError

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "cats and dogs; logs and mats"] * 3


def ids(tokenizer: Tokenizer, *texts: str, max_length: int = 64) -> list[list[int]]:
    values, offsets, _ = encode(texts, tokenizer, max_length)
    return [part.tolist() for part in np.split(values, offsets[1:-1])]


def test_special_tokens_size_and_case() -> None:
    tokenizer = train_tokenizer(TEXTS, 60)
    assert [tokenizer.id_to_token(i) for i in range(4)] == ["[PAD]", "[UNK]", "[CLS]", "[MASK]"]
    assert tokenizer.get_vocab_size() <= 60
    assert ids(tokenizer, "The CAT sat") == ids(tokenizer, "the cat sat")
    assert tokenizer.decode(ids(tokenizer, "The cats; sat")[0]) == "the cats ; sat"
    assert len(ids(tokenizer, "the cat")[0]) == 2  # frequent words are one token


def test_unknown_characters_and_empty_texts_are_one_unknown_token() -> None:
    tokenizer = train_tokenizer(TEXTS, 60)
    beginning = tokenizer.token_to_id("▁")
    assert ids(tokenizer, "猫猫猫", "", " \n ") == [[beginning, 1], [1], [1]]


def test_cls_begins_each_text() -> None:
    tokenizer = train_tokenizer(TEXTS, 60, add_cls=True)
    plain = ids(train_tokenizer(TEXTS, 60), "the cat")[0]
    assert ids(tokenizer, "the cat", "") == [[2, *plain], [2]]


def test_long_texts_are_cut_and_counted() -> None:
    tokenizer = train_tokenizer(TEXTS, 60)
    whole = ids(tokenizer, TEXTS[0])[0]
    values, offsets, cut = encode([TEXTS[0], "the cat", TEXTS[1], ""], tokenizer, max_length=3)
    assert np.diff(offsets).tolist() == [3, 2, 3, 1]
    assert values[:3].tolist() == whole[:3]
    assert cut == 2


def test_a_saved_tokenizer_cuts_by_itself(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, 60)
    expected = ids(tokenizer, TEXTS[0], max_length=3)[0]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(path).encode(TEXTS[0]).ids == expected


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(TEXTS, 60)
    whole = encode(TEXTS, tokenizer, 4)
    monkeypatch.setattr("project.data.store.CHUNK", 2)
    parts = encode(TEXTS, tokenizer, 4)
    assert (whole[0] == parts[0]).all()
    assert (whole[1] == parts[1]).all()
    assert whole[2] == parts[2] == 9


def test_training_is_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library seeds its hash tables anew in each training, so that a dependence on their order shows."""
    trained = [train_tokenizer(TEXTS, 60).to_str() for _ in range(4)]
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert set(trained) == {train_tokenizer(TEXTS, 60).to_str()}


def test_a_tokenizer_without_unknown_token(tmp_path: Path) -> None:
    vocabulary = {"<pad>": 0, "a": 1, "b": 2}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "t.json"))
    loaded = load_tokenizer(tmp_path / "t.json")
    assert unknown_id(loaded) == 1
    assert ids(loaded, "a b", "") == [[1, 2], [1]]  # and its own padding is off


def test_bad_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json is no tokenizer of the tokenizers library: No such file"):
        load_tokenizer(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UserError, match=r"t\.json is no tokenizer"):
        load_tokenizer(tmp_path / "t.json")
    Tokenizer(models.WordLevel({"the": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match=r"t\.json: id 0 is 'the'; it must be the padding token"):
        load_tokenizer(tmp_path / "t.json")
