"""Side-by-side measurements against what a user would otherwise pick: `python -m benchmarks.NAME --help`."""
