"""Memory as the operating system counts it, of work done in a process of its own."""

import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LIBRARIES = [
    "project.data",
    "benchmarks.peers",
    "transformers.models.bert.modeling_bert",
    "transformers.models.modernbert.modeling_modernbert",
    "x_transformers",
]


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    """Call it in a process forked from one that has imported the libraries that are there, and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def peak() -> float:
    """MiB: the most that this process has had resident. Linux counts ru_maxrss in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def private() -> float:
    """MiB: what this process has resident now, mapped files left out, which the system may drop at any time."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024
