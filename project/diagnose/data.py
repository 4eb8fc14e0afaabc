"""Checks of the data: are the splits, labels, tokens and loaders what they should be?"""

import copy
import math
import time
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from project.diagnose.batches import find_labels, same, tensors, token_ids
from project.diagnose.registry import check
from project.diagnose.result import Result
from project.diagnose.subject import SPLITS, Subject


@check("split-overlap")
def split_overlap(subject: Subject) -> Result | None:
    """No example stands in two splits."""
    seen = {name: subject.surveyed[name] for name in SPLITS if subject.surveyed[name].examples}
    if len(seen) < 2:
        return None
    names = list(seen)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    shared = {f"{a} and {b}": len(seen[a].hashes & seen[b].hashes) for a, b in pairs}
    counts = ", ".join(f"{name} {split.examples:,}" + ("" if split.whole else "+") for name, split in seen.items())
    values = {"examples": {name: split.examples for name, split in seen.items()}, "shared": shared}
    found = {pair: count for pair, count in shared.items() if count}
    if not found:
        return Result("split-overlap", "pass", f"no example is in two splits ({counts})", values=values)
    smaller = min(split.examples for split in seen.values())
    return Result(
        "split-overlap",
        "failure" if max(found.values()) > 0.005 * smaller else "warning",
        f"examples in two splits: {', '.join(f'{count:,} in {pair}' for pair, count in found.items())} ({counts})",
        "remove repeated examples before splitting; scores on such splits measure memory",
        values,
    )


@check("label-balance")
def label_balance(subject: Subject) -> Result | None:
    """Every class has examples, splits are alike, and batches hold more than one class."""
    train = subject.surveyed["train"]
    if not train.labels:
        return None
    labels, total = train.labels, sum(train.labels.values())
    named = getattr(subject.data, "labels", None)
    names = list(named) if isinstance(named, list | tuple) and len(named) > max(labels) else None
    largest, smallest = max(labels, key=labels.__getitem__), min(labels, key=labels.__getitem__)

    def say(label: int) -> str:
        return f"{names[label] if names and label >= 0 else label} {labels[label] / total:.1%}"

    values = {"classes": {str(k): v for k, v in sorted(labels.items())}}
    if len(labels) == 1:
        if names and len(names) == 1:  # texts without labels, which carry a placeholder
            return None
        return Result(
            "label-balance",
            "failure",
            f"all {total:,} training examples have the label {say(largest)}",
            "give the column of labels, or data of two classes at least",
            values,
        )
    equal = labels[largest] == labels[smallest]
    sizes = f"{1 / len(labels):.1%} each" if equal else f"from {say(largest)} to {say(smallest)}"
    seen = f"{len(labels)} classes, {sizes}"
    expected = classes_by_chance(labels, total / max(1, len(train.mixed)))
    mixed = sum(train.mixed) / max(1, len(train.mixed))
    if len(train.mixed) > 2 and mixed < 1 + (expected - 1) / 3:
        return Result(
            "label-balance",
            "failure",
            f"a training batch holds {mixed:.1f} of {len(labels)} classes, by chance it would be {expected:.1f}",
            "shuffle the training split (DataLoader(shuffle=True)): the model learns one class, then forgets it",
            values,
        )
    for name in ("val", "test"):
        other = subject.surveyed[name].labels
        count = sum(other.values())
        if not other:
            continue
        distance = sum(abs(labels.get(k, 0) / total - other.get(k, 0) / count) for k in labels.keys() | other) / 2
        noise = math.sqrt(len(labels) / count)  # an upper bound of what a random split gives
        if distance > 0.1 + noise:
            return Result(
                "label-balance",
                "failure",
                f"{seen}; {distance:.0%} of {name}'s labels would have to change to be distributed as train's",
                f"split at random, or by class; {name} is of another kind than train",
                values,
            )
    missing = [name for i, name in enumerate(names or []) if i not in labels]
    if missing and train.whole:
        return Result(
            "label-balance",
            "warning",
            f"{seen}; without training examples: {', '.join(map(str, missing[:5]))}",
            "remove these classes, or add examples",
            values,
        )
    if labels[largest] / total > 0.8:
        return Result(
            "label-balance",
            "warning",
            f"{seen}; always answering {say(largest).rpartition(' ')[0]} is right as often",
            "watch macro F1, weight the classes (class_weights), or sample them evenly",
            values,
        )
    return Result("label-balance", "pass", seen, values=values)


def classes_by_chance(labels: dict[int, int], size: float) -> float:
    """Classes that a batch of this size holds on average, if it is drawn at random."""
    total = sum(labels.values())
    return sum(1 - (1 - count / total) ** size for count in labels.values())


@check("padding-share")
def padding_share(subject: Subject) -> Result | None:
    """Little of a batch is padding."""
    train = subject.surveyed["train"]
    if not train.places:
        return None
    share = 1 - train.real / train.places
    values = {"share": share, "source": subject.padding.source, "token_id": subject.padding.value}
    if not subject.padding.source:
        return Result("padding-share", "pass", "no padding recognised", values=values)
    seen = f"{share:.1%} of training tokens are padding, by {subject.padding.source}"
    if subject.padding.source == "token id":
        seen += f" {subject.padding.value}"
    if share > 0.4:
        advice = "put texts of like length into a batch, as project.data does: the model computes padding for nothing"
        return Result("padding-share", "warning", seen, advice, values)
    return Result("padding-share", "pass", seen, values=values)


@check("unknown-tokens")
def unknown_tokens(subject: Subject) -> Result | None:
    """The tokenizer knows the texts."""
    if subject.unknown_id is None:
        return None
    shares = {name: split.unknown / split.real for name, split in subject.surveyed.items() if split.real}
    if not shares:
        return None
    name = max(shares, key=shares.__getitem__)
    seen = f"{', '.join(f'{name} {share:.2%}' for name, share in shares.items())} of tokens are unknown"
    advice = f"train the tokenizer on these texts, or take the one that they were made for; {name} has the most"
    status = "failure" if shares[name] > 0.2 else "warning" if shares[name] > 0.05 else "pass"
    return Result("unknown-tokens", status, seen, "" if status == "pass" else advice, {"shares": shares})  # type: ignore[arg-type]


@check("decoded-batch")
def decoded_batch(subject: Subject) -> Result | None:
    """A first batch as a person would read it."""
    batch = subject.train_batches[0]
    values: dict[str, Any] = {"tensors": {path: describe(path, t) for path, t in tensors(batch).items()}}
    found = tensors(batch)
    bad = [path for path, t in found.items() if t.is_floating_point() and not t.isfinite().all()]
    if bad:
        return Result(
            "decoded-batch",
            "failure",
            f"{', '.join(bad)} holds values that are not finite",
            "clean the data: a single NaN in a batch ends training",
            values,
        )
    tokens = next(iter(token_ids(batch).items()), None)
    if subject.tokenizer is None or tokens is None:
        return Result("decoded-batch", "pass", "; ".join(values["tensors"].values()), values=values)
    path, ids_BT = tokens
    lengths = subject.padding.lengths(batch)
    labels = found.get(find_labels(batch) or "")
    names = getattr(subject.data, "labels", None)
    values["texts"] = []
    for i in range(len(ids_BT)):
        ids = ids_BT[i, : ids_BT.size(1) if lengths is None else int(lengths[i])].tolist()
        text = subject.tokenizer.decode(ids)
        if not text.strip():  # an empty text of the data
            continue
        label = "" if labels is None or labels.ndim != 1 else int(labels[i])
        if isinstance(label, int) and isinstance(names, list | tuple) and 0 <= label < len(names):
            label = names[label]
        values["texts"].append([str(label), text])
        if len(values["texts"]) == 5:
            break
    if not values["texts"]:
        return Result(
            "decoded-batch",
            "failure",
            f"the tokens of {path} are decoded to nothing",
            "the data module's tokenizer is not the one that made the tokens",
            values,
        )
    label, text = values["texts"][0]
    return Result("decoded-batch", "pass", f"{label}: {text[:80]!r}" if label else repr(text[:80]), values=values)


def describe(path: str, tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    bounds = f" from {tensor.min().item():.4g} to {tensor.max().item():.4g}" if tensor.numel() else ""
    return f"{path} {tuple(tensor.shape)} {kind}{bounds}"


@check("same-batch-twice")
def same_batch_twice(subject: Subject) -> Result | None:
    """The same row read twice is the same."""
    values: dict[str, str | None] = {}
    for split in SPLITS:
        loader = subject.loader(split)
        if loader is not None:
            values[split] = reads_differ(loader)
    for split, path in values.items():
        is_label = path is not None and path == find_labels(next(subject.batches(split)))
        if path is not None and (split != "train" or is_label):
            return Result(
                "same-batch-twice",
                "failure",
                f"the same rows of {split} read twice differ in {path}",
                "make reading a row depend on nothing but its index; augmentation belongs to training inputs alone",
                values,
            )
    if values.get("train") is not None:
        return Result(
            "same-batch-twice",
            "warning",
            f"the same training rows read twice differ in {values['train']}",
            "right if augmentation is meant; otherwise make reading a row depend on nothing but its index",
            values,
        )
    return Result("same-batch-twice", "pass", f"the same rows are the same in {', '.join(values)}", values=values)


def reads_differ(loader: Any) -> str | None:
    """Path of what differs when the first rows are read twice; None if nothing does."""
    dataset: Any = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or isinstance(dataset, IterableDataset):
        first, second = (list(islice(iter(loader), 2)) for _ in range(2))
        return same(first, second)
    source = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    index: Any = next(iter(source))  # a row, or the rows of a batch
    rows = index if isinstance(index, list) and loader.batch_sampler is not None else [index]
    for row in rows[:8]:
        if path := same(dataset[row], dataset[row]):
            return path
    return None


@check("loader-speed")
def loader_speed(subject: Subject) -> Result:
    """The model does not wait for its data."""
    train = subject.surveyed["train"]
    unit = "tokens" if train.real else "examples"
    loader = (train.real or train.examples) / max(train.seconds, 1e-9)
    model = subject.speed
    values = {"unit": unit, "loader": loader, "model": model}
    seen = f"the loader gives {loader:,.0f} {unit}/s, the model takes {model:,.0f}"
    if loader > 10 * model:
        return Result("loader-speed", "pass", seen, values=values)
    status = "warning" if loader < 3 * model else "pass"
    advice = "prepare the data once, before training, or let workers do it: see workers" if status == "warning" else ""
    return Result("loader-speed", status, seen, advice, values)  # type: ignore[arg-type]


@check("workers")
def workers(subject: Subject) -> Result | None:
    """As many worker processes as are of use."""
    loader = subject.loader("train")
    if not isinstance(loader, DataLoader):
        return None
    train, configured = subject.surveyed["train"], loader.num_workers
    needed = subject.speed
    rates = {configured: (train.real or train.examples) / max(train.seconds, 1e-9)}
    tried = [0, 1, 2] if min(rates.values()) < 10 * needed or configured else [0]
    for number in tried:
        if number not in rates:
            rates[number] = measure(with_workers(loader, number), subject)
    best = min((n for n in rates if rates[n] > 10 * needed), default=max(rates, key=rates.__getitem__))
    values = {"rates": {str(k): v for k, v in rates.items()}, "needed": needed, "best": best}
    counted = ", ".join(f"{n}: {rate:,.0f}/s" for n, rate in sorted(rates.items()))
    seen = f"num_workers {configured} of {counted}; the model takes {needed:,.0f}/s"
    if rates[best] > 1.5 * rates[configured] and rates[configured] < 3 * needed:
        return Result("workers", "warning", seen, f"set num_workers {best}", values)
    return Result("workers", "pass", seen + (f"; {best} would do" if best < configured else ""), values=values)


def with_workers(loader: Any, number: int) -> Any:
    """The same loader with another number of workers."""
    other = copy.copy(loader)
    other.num_workers = number
    other.prefetch_factor = 2 if number else None
    object.__setattr__(other, "persistent_workers", False)
    other._iterator = None
    return other


def measure(loader: Any, subject: Subject, seconds: float = 1.0) -> float:
    """Tokens, or examples, that a loader gives in a second, its start included."""
    begin, count = time.perf_counter(), 0
    for batch in loader:
        count += subject.count(batch)
        if time.perf_counter() - begin > seconds:
            break
    return count / (time.perf_counter() - begin)
