"""Label texts with a bundle: onnxruntime, tokenizers and numpy, no torch, so it answers within a second."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from project.errors import UserError
from project.export.artifacts import ARTIFACTS, Array, sha256
from project.export.interface import Interface

TOKENS_PER_BATCH = 4096
INPUTS = ["tokens", "padding_mask"]


class Predictor:
    """A bundle, loaded.

    Its logits are those of the run's network in float32, to within the `parity` in the manifest, and its probabilities
    those of `predict --run --precision 32-true` to 1e-4. Without that option the run predicts in the precision of its
    training: bf16-mixed moves probabilities by up to 0.02.

    Args:
        folder: the bundle, `runs/<name>/<id>/export`.
        name: which of its ONNX artifacts; by default float32, or what there is.
        threads: how many to compute with; 0 for as many as there are cores.

    Raises:
        UserError: it is no bundle of a classification of texts, its file is not the one that was verified, or a package
            is missing.
    """

    def __init__(self, folder: Path, name: str | None = None, threads: int = 0) -> None:
        manifest = _manifest(folder)
        there = [name for name in ("onnx", "onnx-int8") if name in manifest["artifacts"]]
        if not there or (name is not None and name not in there):
            raise UserError(
                f"{folder} has no artifact {name or 'onnx'} (for this: {', '.join(there) or 'none'}); export it"
            )
        if find_spec("onnxruntime") is None:
            raise UserError("predict --bundle needs onnxruntime; install it: pip install onnxruntime")
        name = name or there[0]
        file = folder / ARTIFACTS[name].file
        try:
            if sha256(file) != manifest["artifacts"][name]["sha256"]:
                raise UserError(f"{file} is not the file that was verified: its sha256 differs from manifest.json")
            self.labels: list[str] = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
            self.tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{folder} cannot label texts: {error.filename}: {error.strerror}") from error
        self.interface = Interface.from_json(manifest["interface"])
        if [i.name for i in self.interface.inputs] != INPUTS:
            raise UserError(
                f"{folder} cannot label texts: its inputs are {', '.join(i.name for i in self.interface.inputs)}"
            )
        self.tokenizer.no_padding()
        max_length = self.interface.max_sizes.get("sequence")
        truncation = self.tokenizer.truncation
        if max_length and not (truncation and truncation["max_length"] <= max_length):
            self.tokenizer.enable_truncation(max_length)
        self.reader = ARTIFACTS[name].read(file, threads)

    def probabilities(self, texts: list[str]) -> Array:
        """Probability of each label, (N, C), in the order of the texts and of `labels`."""
        ids = self._encode(texts)
        probabilities = np.empty((len(texts), len(self.labels)), np.float32)
        for rows in _batches([len(row) for row in ids]):
            tokens = np.zeros((len(rows), max(len(ids[row]) for row in rows)), np.int64)
            mask = np.zeros(tokens.shape, bool)
            for i, row in enumerate(rows):
                tokens[i, : len(ids[row])] = ids[row]
                mask[i, : len(ids[row])] = True
            self.interface.check([tokens, mask])
            logits = self.reader.run([tokens, mask])[0]
            exponentials = np.exp(logits - logits.max(-1, keepdims=True))
            probabilities[rows] = exponentials / exponentials.sum(-1, keepdims=True)
        return probabilities

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids as in training: cut at its length, one unknown token for a text without any.

        Ids that the network does not know, of a tokenizer that has grown since, become unknown tokens.
        """
        token = getattr(self.tokenizer.model, "unk_token", None)
        found = self.tokenizer.token_to_id(token) if token else None
        unknown = 1 if found is None else found
        num_ids = self.interface.inputs[0].num_ids or self.tokenizer.get_vocab_size()
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        encodings = self.tokenizer.encode_batch_fast(clean)
        return [[i if i < num_ids else unknown for i in encoding.ids] or [unknown] for encoding in encodings]

    def predict(self, texts: list[str]) -> list[dict[str, Any]]:
        """Label of highest probability for each text, in the order given."""
        probabilities = self.probabilities(texts)
        best = probabilities.argmax(-1)
        return [
            {"text": text, "label": self.labels[i], "probability": round(float(row[i]), 6)}
            for text, i, row in zip(texts, best, probabilities, strict=True)
        ]


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return manifest
    except OSError as error:
        raise UserError(
            f"{folder} is no bundle: it has no manifest.json; make one: python -m project export --run runs/<name>/<id>"
        ) from error


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Rows of like lengths under a budget of padded tokens, longest first."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > TOKENS_PER_BATCH:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
