"""A byte-pair tokenizer trained on the training split, or any other of the `tokenizers` library."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from project.errors import UserError, one_line

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[MASK]"]
PAD, UNK, CLS, MASK = range(4)


def train_tokenizer(texts: Iterable[str], vocab_size: int, add_cls: bool = False) -> Tokenizer:
    """Lower-cased words cut into byte pairs (Sennrich et al. 2016); ids 0 to 3 are the special tokens.

    The same texts give the same tokenizer, on any machine and number of threads.

    Args:
        texts: of the training split alone.
        vocab_size: upper bound of token ids, special ones included.
        add_cls: begin each text with [CLS].
    """
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    # The mark of a word's beginning is a character of the word, not the model's own prefix or suffix for pieces: with
    # those, the library numbers pieces in the random order of a hash table, and each training gives another tokenizer.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, min_frequency=2, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if add_cls:
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", CLS)])
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer.json, or the one in a run's folder.

    Raises:
        UserError: there is none, or its id 0 is in use for something other than padding.
    """
    file = Path(path).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{file.absolute()} is no tokenizer of the tokenizers library: {one_line(error)}") from error
    first = tokenizer.id_to_token(0)
    if "pad" not in str(first).lower():
        raise UserError(f"{file}: id 0 is {first!r}; it must be the padding token, as in BERT's tokenizers")
    tokenizer.no_padding()
    return tokenizer


def unknown_id(tokenizer: Tokenizer) -> int:
    """Id of the unknown token; 1 where a tokenizer has none, because it knows every character."""
    token = getattr(tokenizer.model, "unk_token", None)
    found = tokenizer.token_to_id(token) if token else None
    return UNK if found is None else found
