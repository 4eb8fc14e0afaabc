"""The package's name wherever a file means the package, and nowhere else.

Python is read by its syntax tree, YAML by its nodes, TOML by its tables, a notebook cell by cell. In comments,
docstrings and documents the package is meant by `python -m NAME`, an import, a dotted path into it or its folder;
elsewhere the word is a word: W&B's key `project:`, the table `[project]`, `~/projects`.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import yaml

TEXT = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}  # from Python 3.12 on
TAKE_A_MODULE = {"getLogger", "set_level", "at_level", "import_module", "find_spec"}


@dataclass(frozen=True)
class Renaming:
    """From one name of the package to another.

    Attributes:
        old: name of the package.
        new: its name in the fork.
        modules: names of what lies in the package, by which a dotted path is told from a word before a full stop.
    """

    old: str
    new: str
    modules: frozenset[str]

    @cached_property
    def mention(self) -> re.Pattern[str]:
        old, inside = re.escape(self.old), "|".join([*map(re.escape, sorted(self.modules)), r"__\w+__"])
        alone = r"(?<![\w./~$-])"
        ways = (
            rf"(?:(?<=-m )|(?<=-m, )|(?<=-m -- )){old}(?![\w-])",
            rf"(?<=\bimport ){old}(?=\s*(?:$|[;,#\"'`\\]|as\b))",
            rf"(?<=\bfrom ){old}(?= import\b)",
            rf"{alone}{old}(?=\\?\.(?:{inside})\b)",
            rf"(?<=[\"']){old}(?=\.[\"'{{])",  # startswith("NAME."), f"NAME.{room}"
            rf"{alone}{old}(?=/(?:{inside})\b|/(?:[`\s*\"']|$))",
            rf"(?<!\w){old.upper()}(?=_[A-Z])",  # environment variables
        )
        return re.compile("|".join(ways), re.MULTILINE)

    def path(self, path: Path) -> Path:
        """Where a file, by its path in the repository, lies in the fork."""
        return Path(self.new, *path.parts[1:]) if path.parts[0] == self.old else path

    def file(self, path: Path, text: str) -> str:
        """The text of a file under the new name."""
        if self.old not in text and self.old.upper() not in text:
            return text
        readers = {
            ".py": self.python,
            ".pyi": self.python,
            ".yaml": self.yaml,
            ".yml": self.yaml,
            ".toml": self.toml,
            ".ipynb": self.notebook,
        }
        return readers.get(path.suffix, self.text)(text)

    def text(self, text: str) -> str:
        return self._replace(text, self._mentions(text))

    def python(self, text: str) -> str:
        try:
            tree = ast.parse(text)
        except SyntaxError:  # such as a cell with a shell command
            return self.text(text)
        lines = list(io.StringIO(text))
        starts = [0, *accumulate(map(len, lines))]

        def offset(line: int, column: int) -> int:
            return starts[line - 1] + column

        def place(node: ast.alias | ast.expr | ast.stmt) -> int:
            in_bytes = lines[node.lineno - 1].encode()[: node.col_offset]
            return offset(node.lineno, len(in_bytes.decode()))

        found = {text.index(self.old, place(node)) for node in self._meant(tree)}
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        spans = [(offset(*token.start), offset(*token.end)) for token in tokens if token.type in TEXT]
        mentions = self._mentions(text)
        found |= {at for start, end in spans for at in mentions if start <= at < end}
        return self._replace(text, found)

    def yaml(self, text: str) -> str:
        found = self._mentions(text)
        for node in yaml_nodes(text):
            if isinstance(node, yaml.SequenceNode):
                for option, value in pairwise(node.value):
                    if option.value == "-m" and value.value == self.old:
                        found.add(text.index(self.old, value.start_mark.index))
        return self._replace(text, found)

    def toml(self, text: str) -> str:
        old = re.escape(self.old)
        value_or_key = rf"(?<=[\"']){old}(?=\*?[\"'])|(?<=\.){old}(?=\s*=)|^{old}(?=\s*=)"
        found = self._mentions(text) | {match.start() for match in re.finditer(value_or_key, text, re.MULTILINE)}
        for table in re.finditer(r"^\[.*$", text, re.MULTILINE):
            found -= set(range(*table.span()))
        return self._replace(text, found)

    def notebook(self, text: str) -> str:
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            cell["source"] = self._cell(cell["cell_type"], "".join(cell["source"])).splitlines(keepends=True)
        return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"

    def _cell(self, kind: str, source: str) -> str:
        if kind != "code":
            return self.text(source)
        magic, newline, rest = source.partition("\n")
        if magic.startswith("%%"):
            return self.text(magic) + newline + self.file(Path(magic.split()[-1]), rest)
        return self.python(source)

    def _mentions(self, text: str) -> set[int]:
        return {match.start() for match in self.mention.finditer(text)}

    def _replace(self, text: str, places: Iterable[int]) -> str:
        for at in sorted(places, reverse=True):
            end = at + len(self.old)
            text = text[:at] + (self.new if text[at:end] == self.old else self.new.upper()) + text[end:]
        return text

    def _meant(self, tree: ast.Module) -> Iterator[ast.alias | ast.expr | ast.stmt]:
        """Nodes that begin with the package's name: its imports, what is bound by them, strings that are it."""
        bound = False
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] == self.old:
                        bound |= alias.asname is None
                        yield alias
            elif isinstance(node, ast.ImportFrom) and not node.level:
                if str(node.module).partition(".")[0] == self.old:
                    yield node
            else:
                yield from (part for part in strings_for_modules(node) if part.value == self.old)
        if bound:
            yield from self._names(tree)

    def _names(self, node: ast.AST) -> Iterator[ast.Name]:
        """Uses of the imported package, not of a function's own variable of that name."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and child.id == self.old:
                yield child
            if not (isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and self.old in own(child)):
                yield from self._names(child)


def own(function: ast.AST) -> set[str]:
    """Names that are a function's own: arguments and what is assigned."""
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return arguments | {name.id for name in names if isinstance(name.ctx, ast.Store)}


def strings_for_modules(node: ast.AST) -> Iterator[ast.Constant]:
    """Strings that name a module or its folder where they stand, rather than a key or a word."""
    parts: Sequence[ast.expr] = []
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in TAKE_A_MODULE:
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.List | ast.Tuple):
        parts = [word for option, word in pairwise(node.elts) if getattr(option, "value", None) == "-m"]
    elif isinstance(node, ast.Compare) and getattr(node.left, "attr", None) in ("name", "__name__"):
        parts = node.comparators
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [node.right]
    yield from (part for part in parts if isinstance(part, ast.Constant))


def yaml_nodes(text: str) -> Iterator[yaml.Node]:
    """Every node of a YAML file, from the outside to the inside; none of one that cannot be read."""
    try:
        todo = [node for node in yaml.compose_all(text, yaml.SafeLoader) if node]
    except yaml.YAMLError:
        todo = []
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, yaml.MappingNode):
            todo += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
