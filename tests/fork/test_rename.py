"""What means the package gets the new name, what does not keeps its own: <acme> marks the former."""

from pathlib import Path

import pytest

from project.fork.rename import Renaming

RENAMING = Renaming("acme", "torch_acme_x", frozenset({"__main__", "data", "data_extra", "nn", "cli"}))

CASES = {
    "document.md": """
`python -m <acme> fit`, python -m <acme>, `-m <acme>.cli`, but --acme classify and python -m acme-x are others'.
An acme of acme. Acme acme's ~/acmes, ~/acme/nn, /home/me/acme/data, my-acme/nn, my_acme.nn, acmes.nn, acme.org
and pyacme.nn.
torchrun -m -- <acme> fit, torchrun -- acme fit, torchrun -m -- acme-x fit
`<acme>.nn.Encoder`, <acme>.data: `<acme>/nn/`, `<acme>/`, (<acme>/cli.py), acme.database, <acme>.__version__
import <acme>
from <acme> import nn
Data from acme: import acme data with care.
<ACME>_RUN_FOLDER=a WANDB_ACME_X=b
""",
    "module.py": '''
"""The acme's own: `<acme>.nn`. Run: python -m <acme> fit."""
import <acme>
import <acme>.nn, os
import <acme>.data as acme_data
from <acme> import cli
from <acme>.cli import (
    main,
)
from .acme import thing
from acmes import other


def run(wandb, sizes):  # é <acme>.nn and acme
    """é"""; files = <acme>.__file__
    wandb.init(acme="acme", **{"acme": 1}).acme.log(settings["acme"], settings.get("acme"))
    return ["-m", "<acme>", "fit"], ("python", "-m", "acmes"), ("acme", "program"), Path(<acme>.__path__[0]) / "<acme>"


def shadow(acme: str | None = None):
    return acme or acme.nn


def assigned():
    acme = 1
    return acme, <ACME>


<acme>.nn.Encoder = property(lambda self: <acme>.nn, lambda acme: acme)
log = logging.getLogger("<acme>")
caplog.set_level(logging.INFO, logger="<acme>")
names = record.name == "<acme>", record.title == "acme", f"<acme>.{room} {<acme>.nn}", module.startswith("<acme>.")
words = "in acme.", "acme", {"acme"}, x["acme"]
variables = "<ACME>_TRIAL", "ACME", "WANDB_ACME"
pattern = r"is <acme>\\.nn\\.Encoder"
'''.replace("<ACME>\n", "ACME\n"),
    "config.yaml": """
# python -m <acme> fit reads this; the acme is W&B's
acme: acme
logger: {class_path: <acme>.nn.WandB, init_args: {acme: acme, folder: ~/acmes}}
<acme>.nn.key: ["${env}", python, -m, <acme>, fit]
command:
  - -m
  - <acme>
  - acme
program: [acme, -m, other]
""",
    "broken.yaml": "{{ template }}: [python -m <acme>\n",
    "pyproject.toml": """
[project]
name = "<acme>" # <acme>.nn, of the acme
description = "An acme"
[project.optional-dependencies]
[acme.nn]
[tool.setuptools]
packages.find.include = ["<acme>*"]
package-data.<acme> = ["acme/page.html"]
dynamic.version.attr = "<acme>.__version__"
[tool.x]
<acme> = ["tests", "<acme>", 'acmes']
""",
    "Makefile": "fit:\n\t$(BIN)/python -m <acme> fit --wandb.acme acme\n",
    "job.sh": 'exec srun .venv/bin/python -m <acme> fit "$@" --runs_dir "$HOME/acme/data" --acme acme\n',
}


@pytest.mark.parametrize("name", CASES)
def test_what_means_the_package_and_nothing_else(name: str) -> None:
    old = CASES[name].replace("<acme>", "acme").replace("<ACME>", "ACME")
    new = CASES[name].replace("<acme>", "torch_acme_x").replace("<ACME>", "TORCH_ACME_X")
    assert RENAMING.file(Path(name), old) == new != old
    back = Renaming("torch_acme_x", "acme", RENAMING.modules)  # a fork of a fork
    assert back.file(Path(name), new) == old


def test_notebook() -> None:
    text = """{
 "cells": [
  {
   "cell_type": "markdown",
   "source": [
    "An acme: `python -m <acme> fit` → é\\n",
    "acme"
   ]
  },
  {
   "cell_type": "code",
   "source": [
    "from <acme>.nn import x\\n",
    "run(acme=\\"acme\\", a=[\\"-m\\", \\"<acme>\\"])"
   ]
  },
  {
   "cell_type": "code",
   "source": [
    "%%writefile a.yaml\\n",
    "command:\\n",
    "- -m\\n",
    "- <acme>\\n"
   ]
  },
  {
   "cell_type": "code",
   "source": [
    "!python -m <acme> fit --acme acme"
   ]
  }
 ]
}
"""
    assert RENAMING.file(Path("a.ipynb"), text.replace("<acme>", "acme")) == text.replace("<acme>", "torch_acme_x")


def test_only_the_package_moves() -> None:
    assert RENAMING.path(Path("acme/nn/acme.py")) == Path("torch_acme_x/nn/acme.py")
    assert RENAMING.path(Path("tests/acme/a.py")) == Path("tests/acme/a.py")
