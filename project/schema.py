"""schema: write a JSON schema of the configuration files, by which editors complete and check them while one types."""

import inspect
import json
import pkgutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse._completions_jsonschema import ParserJsonschema
from jsonargparse._typehints import ActionTypeHint
from torch import Tensor
from torch.optim import Optimizer

import project
from project.cli import Parsing, command_line
from project.errors import UserError
from project.options import Options

PACKAGE = project.__name__
# Whose classes are offered. Another class is accepted, its init_args unchecked: torch's modules would bury ours.
OFFERED = (f"{PACKAGE}.", "lightning.pytorch.", "torch.optim.")


class ConfigurationSchema(ParserJsonschema):
    """jsonargparse's schema of a parser, for files of which several make one configuration.

    Notable:
    - nothing is required, and init_args may stand without a class_path that another file gives: an overlay says no
      more than what it changes;
    - lists can be appended to: `callbacks+`;
    - it keeps to draft 7, which every editor knows.
    """

    def generate(self, parser: Any) -> dict[str, Any]:
        schema = super().generate(parser)
        loosen(schema)
        return schema | {"$schema": "http://json-schema.org/draft-07/schema#"}

    def add_properties(self, parser: Any, schema: dict[str, Any]) -> None:
        super().add_properties(parser, schema)
        for action in parser._actions:
            if isinstance(action, ActionTypeHint) and ActionTypeHint.supports_append(action):
                self.set_dest(schema, f"{action.dest}+", self.typehint_schema(action._typehint, action), False, {})

    def typehint_schema(self, typehint: Any, action: Any) -> dict[str, Any]:
        return {"type": "number"} if typehint is Tensor else super().typehint_schema(typehint, action)

    def tuple_schema(self, typehint: Any, action: Any) -> dict[str, Any]:
        items = [self.typehint_schema(item, action) for item in typehint.__args__ if item is not Ellipsis]
        return {"type": "array", "items": {"anyOf": items}} if items else {"type": "array"}

    def subclass_def(self, class_type: type, action: Any) -> dict[str, Any]:
        """A class path, alone or with init_args, which are checked for the classes that are offered."""
        offered = sorted(set(offered_paths(class_type)))
        for path in offered:
            if path not in self.defs:
                self.defs[path] = {}  # first, for a class that takes another of its kind
                doc = inspect.getdoc(load(path)) or ""
                self.defs[path].update(self.class_parser_schema(path, action, doc.partition("\n")[0]))
                for given in ("params", "params+") if class_type is Optimizer else ():  # by the task
                    self.defs[path].get("properties", {}).pop(given, None)
        mistyped = {"pattern": rf"^{PACKAGE}\.\w+\.[A-Z]\w*$"}  # what a room exports is known
        class_path = {"type": "string", "anyOf": [{"enum": offered}, {"not": mistyped}]}
        keys = {"class_path": class_path, "init_args": {"type": "object"}, "dict_kwargs": {"type": "object"}}
        init_args = {path: {"$ref": f"#/$defs/{path}"} for path in offered}
        cases: list[dict[str, Any]] = [
            {
                "if": {"properties": {"class_path": {"const": path}}, "required": ["class_path"]},
                "then": {"properties": {"init_args": schema}},
            }
            for path, schema in init_args.items()
        ]
        unnamed = {"anyOf": list(init_args.values())} if init_args else {}
        cases.append({"if": {"not": {"required": ["class_path"]}}, "then": {"properties": {"init_args": unnamed}}})
        spec = {"type": "object", "properties": keys, "additionalProperties": False, "allOf": cases}
        return {"anyOf": [class_path, spec]}


def offered_paths(class_type: type) -> Iterator[str]:
    """Import paths of a class and its subclasses, those that can be built."""
    if class_type.__module__.startswith(OFFERED) and not inspect.isabstract(class_type):
        path = shortest_path(class_type)
        own = class_type.__module__.startswith(f"{PACKAGE}.")
        if path is not None and "._" not in path and not (own and path.count(".") > 2):  # ours if a room exports it
            yield path
    subclasses: list[type] = type.__subclasses__(class_type)
    for subclass in subclasses:
        yield from offered_paths(subclass)


def shortest_path(cls: type) -> str | None:
    """Where a class can be imported from; None for one that is made inside a function."""
    parts = cls.__module__.split(".")
    modules = (".".join(parts[: i + 1]) for i in range(len(parts)))
    return next((f"{m}.{cls.__name__}" for m in modules if getattr(import_module(m), cls.__name__, None) is cls), None)


def load(path: str) -> type:
    module, _, name = path.rpartition(".")
    cls: type = getattr(import_module(module), name)
    return cls


def loosen(schema: Any) -> None:
    """Require no key, and leave `$schema` to a comment on the first line, which is all that overlays can have."""
    if isinstance(schema, dict):
        if "additionalProperties" in schema:
            schema.pop("required", None)
            schema.get("properties", {}).pop("$schema", None)
        for part in schema.values():
            loosen(part)
    elif isinstance(schema, list):
        for part in schema:
            loosen(part)


class Parsers(Parsing):
    """Ends when the parsers are built."""

    def parse_arguments(self, parser: Any, args: Any) -> None:
        self.config = Namespace(subcommand="fit", fit=Namespace())


def configuration_schema() -> dict[str, Any]:
    """A JSON schema of what `fit --config` takes, whole or as an overlay."""
    for module in pkgutil.iter_modules(project.__path__):
        if module.name != "__main__":
            import_module(f"{PACKAGE}.{module.name}")  # a class is offered once its room is imported
    return ConfigurationSchema().generate(command_line(Parsers, ["fit"])._subcommand_parsers["fit"])


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: the file cannot be written.
    """
    parser = Options("schema", __doc__)
    parser.add_argument("--output", type=Path, default=Path("configs/schema.json"), help="default %(default)s")
    output = parser.parse_args(arguments[1:]).output
    text = json.dumps(configuration_schema(), indent=1)
    try:
        output.write_text(text + "\n")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
    print(f"{output}: name it in the first line of a configuration, as seen from there:")
    print("# yaml-language-server: $schema=schema.json")
