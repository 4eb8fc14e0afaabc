"""Data modules and what they need: sources, splits, tokenizer, encoded store, batching."""

from project.data.digits import DigitsData
from project.data.held_out import WithoutHeldOut
from project.data.lines import TextLines
from project.data.sources import HubDataset, Source, TableFile
from project.data.store import TokenDataset, encode_batches
from project.data.text import TextClassificationData
from project.data.wordnet import WordNetGlosses

__all__ = [
    "DigitsData",
    "HubDataset",
    "Source",
    "TableFile",
    "TextClassificationData",
    "TextLines",
    "TokenDataset",
    "WithoutHeldOut",
    "WordNetGlosses",
    "encode_batches",
]
