"""What a fork can leave out: files, and what the others say of them.

The handwritten digits stay whatever is left out: they are a fixture of the tests, and come with the extra `dev`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from project.fork.rename import yaml_nodes

TEXTS = "texts.csv"


@dataclass(frozen=True)
class Part:
    """Something that a fork can do without.

    Attributes:
        files: it consists of these files and folders, PACKAGE standing for the package.
        named: how other files name it.
        declared: what pyproject.toml, constraints.txt and Makefile hold of it.
        source: its class of texts; configurations that have it get a table of texts instead.
        config: its configuration; notebooks that run it are of the part.
    """

    files: tuple[str, ...]
    named: re.Pattern[str]
    declared: re.Pattern[str]
    source: str | None = None
    config: str | None = None

    def holds(self, path: Path, text: str, package: str) -> bool:
        """Whether a file of the repository belongs to it."""
        runs_it = path.suffix == ".ipynb" and self.config is not None and self.config in text
        return runs_it or any(path.is_relative_to(file.replace("PACKAGE", package)) for file in self.files)

    def removed_from(self, path: Path, text: str) -> str:
        """The text of another file, which then says no more of it."""
        if path.name in ("pyproject.toml", "constraints.txt", "Makefile"):
            text = self.declared.sub("", text)
        if path.suffix == ".yaml" and self.source:
            text = with_texts(text, self.source)
        if path.suffix in (".toml", ".yaml"):
            comment = re.compile(r"^#.*\n|[ ]+#.*", re.MULTILINE)
            return comment.sub(lambda match: "" if self.named.search(match[0]) else match[0], text)
        if path.suffix == ".md" and self.named.search(text):
            return "\n\n".join(without_bare_headings([*self._other_blocks(text)])) + "\n"
        if path.parts[1:] == ("data", "__init__.py"):
            return "".join(line for line in text.splitlines(keepends=True) if not self.named.search(line))
        return text

    def _other_blocks(self, text: str) -> Iterator[str]:
        """What does not name it: paragraphs, items, lines of code and of tables. Sections of its figures go whole."""
        for section in markdown_sections(text):
            tables = [block for block in section if block.startswith("|")]
            told = [block for block in section if not block.startswith(("#", "|", "- "))]
            if tables and any(map(self.named.search, told)):
                continue
            for block in section:
                if block.startswith("#"):
                    yield block
                    continue
                by_line = block.startswith(("```", "|"))
                parts = block.splitlines() if by_line else re.split(r"\n(?=- )", block)
                left = [part for part in parts if not self.named.search(part)]
                if len(left) > (2 if by_line else 0):  # more than the fences, or than the head of a table
                    yield "\n".join(left)


def markdown_sections(text: str) -> Iterator[list[str]]:
    """Blocks from one heading up to the next."""
    section: list[str] = []
    for block in markdown_blocks(text):
        if block.startswith("#") and section:
            yield section
            section = []
        section.append(block)
    yield section


def markdown_blocks(text: str) -> Iterator[str]:
    """What blank lines part, and fenced code as one block."""
    block: list[str] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        fence = line.startswith("```")
        if block and not fenced and (fence or not line.strip()):
            yield "\n".join(block)
            block = []
        fenced ^= fence
        if fenced or line.strip():
            block.append(line)


def without_bare_headings(blocks: list[str]) -> Iterator[str]:
    """Blocks but for headings that nothing follows."""
    levels = [len(match[0]) if (match := re.match(r"#+(?= )", block)) else 0 for block in blocks]
    for block, level, following in zip(blocks, levels, [*levels[1:], 1], strict=True):
        if not 0 < following <= level:
            yield block


def with_texts(text: str, source: str) -> str:
    """A configuration whose source of texts is a table."""
    for node in yaml_nodes(text):
        if isinstance(node, yaml.MappingNode):
            path = next((str(value.value) for key, value in node.value if key.value == "class_path"), "")
            if path.endswith(f".{source}"):
                table = f"{{class_path: {path.removesuffix(source)}TableFile, init_args: {{train: {TEXTS}}}}}"
                old = text[node.start_mark.index : node.end_mark.index].rstrip()
                return with_texts(re.sub(rf"\s+{re.escape(old)}", f" {table}", text), source)
    return text


PARTS = {
    "benchmarks": Part(
        files=("benchmarks", "tests/benchmarks"),
        named=re.compile(r"-m benchmarks\b|`benchmarks\b|^benchmarks\b|\[bench\]|hydra-template", re.MULTILINE),
        declared=re.compile(
            r'^bench = \[\n.*?^\]\n|, "benchmarks"|,bench\b|"(x_)?transformers\.\*", |^(x-)?transformers==[^\n]*\n',
            re.MULTILINE | re.DOTALL,
        ),
    ),
    "demo": Part(
        files=("PACKAGE/data/wordnet.py", "tests/data/test_wordnet.py", ".github/run.png"),
        named=re.compile("WordNet"),
        declared=re.compile(r'^\s*"?wn==.*\n', re.MULTILINE),
        source="WordNetGlosses",
        config="quick.yaml",
    ),
}
