"""Peak memory of training steps: how far the resident memory of a fresh process grows by two of them."""

import multiprocessing
import resource
from collections.abc import Sequence

from benchmarks.batches import Batch
from benchmarks.peers import Sizes, Trainee


def grown(name: str, sizes: Sizes, precision: str, batch: Batch) -> float:
    """MiB by which building and training a contender raises this process' peak. Linux counts ru_maxrss in KiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainee = Trainee(name, sizes, precision)
    for _ in range(2):  # the optimizer's state is there from the second on
        trainee.step(batch)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def peak_memory(names: Sequence[str], sizes: Sizes, precision: str, batch: Batch) -> dict[str, float]:
    """MiB by contender: weights, gradients, optimizer state and activations.

    Each is measured in a process forked from one that has imported all libraries and done nothing else.
    """
    context = multiprocessing.get_context("forkserver")
    libraries = ["transformers.models.bert.modeling_bert", "transformers.models.modernbert.modeling_modernbert"]
    context.set_forkserver_preload(["benchmarks.memory", *libraries, "x_transformers"])
    with context.Pool(1, maxtasksperchild=1) as pool:
        return {name: pool.apply(grown, (name, sizes, precision, batch)) for name in names}
