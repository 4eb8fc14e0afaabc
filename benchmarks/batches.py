"""Texts to train on, and the two ways to batch them: at random, and grouped by length as the template does."""

import numpy as np
import torch
from torch import Tensor

from project.data import TextClassificationData, TokenDataset, WordNetGlosses
from project.data.batching import TokenBudgetSampler

Batch = dict[str, Tensor]


def uniform_texts(longest: int, tokens: int, vocab_size: int, num_classes: int) -> TokenDataset:
    """Random token ids, some `tokens` of them, in texts of lengths uniform between a quarter of `longest` and all."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(longest // 4, longest + 1, max(8, round(tokens / (0.625 * longest))))
    offsets = np.cumsum(np.concatenate([[0], lengths]))
    values = generator.integers(4, vocab_size, offsets[-1]).astype(np.int32)  # below 4 are the special tokens
    return TokenDataset(values, offsets, generator.integers(0, num_classes, len(lengths)).astype(np.int32))


def gloss_texts(vocab_size: int) -> TokenDataset:
    """The training split of the default data."""
    data = TextClassificationData(WordNetGlosses(), vocab_size=vocab_size)
    data.setup()
    return data.splits["train"]


def grouped_batches(texts: TokenDataset, budget: int) -> list[list[int]]:
    """Rows of each batch, as the template's data module forms them."""
    return list(TokenBudgetSampler(texts.lengths, budget))


def random_batches(texts: TokenDataset, budget: int) -> list[list[int]]:
    """Rows in random order, as many to a batch as fit the same budget (rows x longest row)."""
    batches: list[list[int]] = []
    longest = budget + 1  # forces a first batch
    for row in np.random.default_rng(0).permutation(len(texts)).tolist():
        longest = max(longest, int(texts.lengths[row]))
        if not batches or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
            longest = int(texts.lengths[row])
        batches[-1].append(row)
    return batches[:-1] or batches


def largest_batch(budget: int, longest: int, vocab_size: int, num_classes: int) -> Batch:
    """As many full rows as the budget allows: what peak memory is measured on."""
    shape = (budget // longest, longest)
    return {
        "tokens": torch.randint(4, vocab_size, shape),
        "padding_mask": torch.ones(shape, dtype=torch.bool),
        "labels": torch.randint(num_classes, shape[:1]),
    }
