"""A byte-pair tokenizer trained on the training split."""

import os
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from project.errors import UserError

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[MASK]"]
PAD, UNK, CLS, MASK = range(4)

# Worker processes are forked after encoding; the library warns of that unless told.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Lower-cased words cut into byte pairs (Sennrich et al. 2016); ids 0 to 3 are the special tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        continuing_subword_prefix="##",
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer.json, or the one in a run's folder.

    Raises:
        UserError: there is none, or its id 0 is in use for something other than padding.
    """
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{file} is no tokenizer of the tokenizers library: {error}") from error
