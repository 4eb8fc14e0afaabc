"""What is left of a file when a part goes."""

from pathlib import Path

import pytest

from project.fork.parts import PARTS, markdown_sections

README = """# Title

## Its figures

Measured with `python -m benchmarks.train`:

| a | b |
|---|---|
| 1 | 2 |

So one concludes.

## Only of it

See `benchmarks`.

## Half of it

A benchmark is a measure.

| data | c |
|---|---|
| mine | 1 |
| `benchmarks` | 2 |

## Commands

```bash
python -m other fit

python -m benchmarks.loop
```

```bash
python -m benchmarks.gpu
```

- a list, whose first item
  has two lines
- what takes long is measured
  by `benchmarks`
- a third
"""

LEFT = """# Title

## Half of it

A benchmark is a measure.

| data | c |
|---|---|
| mine | 1 |

## Commands

```bash
python -m other fit

```

- a list, whose first item
  has two lines
- a third
"""


def test_a_document_keeps_what_does_not_name_the_part() -> None:
    assert PARTS["benchmarks"].removed_from(Path("README.md"), README) == LEFT
    assert PARTS["demo"].removed_from(Path("README.md"), README) == README
    assert [len(section) for section in markdown_sections(README)] == [1, 4, 2, 3, 4]


def test_what_is_declared() -> None:
    text = """
dependencies = [ # `python -m benchmarks.dependencies` reads these
    "wn==1", # WordNet
    "own", # kept
]
bench = [
    "transformers",
]
files = ["acme", "benchmarks"] # types
module = ["sklearn.*", "transformers.*", "x_transformers.*", "onnx.*"]
"""
    assert PARTS["benchmarks"].removed_from(Path("pyproject.toml"), text) == (
        '\ndependencies = [\n    "wn==1", # WordNet\n    "own", # kept\n]\n'
        'files = ["acme"] # types\nmodule = ["sklearn.*", "onnx.*"]\n'
    )
    assert PARTS["demo"].removed_from(Path("pyproject.toml"), text) == text.replace('    "wn==1", # WordNet\n', "")
    assert PARTS["demo"].removed_from(Path("constraints.txt"), "torch==2\nwn==1\nwnx==1\n") == "torch==2\nwnx==1\n"
    pins = "torch==2\ntransformers==5\nx-transformers==2\nxxhash==3\n"
    assert PARTS["benchmarks"].removed_from(Path("constraints.txt"), pins) == "torch==2\nxxhash==3\n"
    assert PARTS["benchmarks"].removed_from(Path("Makefile"), "install '.[dev,bench]'") == "install '.[dev]'"


@pytest.mark.parametrize(
    "source",
    [
        "source: {class_path: acme.data.WordNetGlosses}",
        "source:\n  class_path: acme.data.WordNetGlosses\n  init_args: {parts_of_speech: [verb]}",
    ],
)
def test_a_configuration_reads_a_table_instead(source: str) -> None:
    left = PARTS["demo"].removed_from(Path("a.yaml"), f"# On WordNet.\n# Small.\n{source}\nsize: 3\n")
    assert left == "# Small.\nsource: {class_path: acme.data.TableFile, init_args: {train: texts.csv}}\nsize: 3\n"


def test_notebooks_that_run_on_it_are_of_it() -> None:
    demo = PARTS["demo"]
    assert demo.holds(Path("notebooks/1.ipynb"), 'fit("quick.yaml")', "acme")
    assert not demo.holds(Path("notebooks/1.ipynb"), 'fit("digits.yaml")', "acme")
    assert not demo.holds(Path("configs/quick.yaml"), "# quick.yaml", "acme")
    assert demo.holds(Path("acme/data/wordnet.py"), "", "acme")
    assert not demo.holds(Path("acme/data/wordnets.py"), "", "acme")
