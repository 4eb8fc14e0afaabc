"""completion: write a script by which bash or zsh completes verbs, options and values, without starting Python."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from typing import Any

from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import StrategyRegistry

from project.__main__ import VERBS
from project.diagnose import CHECKS
from project.options import Options
from project.schema import PACKAGE, configuration_schema

CONFIGURED = {"fit", "validate", "test", "check", "sweep"}  # verbs that take what a configuration holds
RESUMED = {"fit", "validate", "test"}  # those of them that take --run, which is no option of their parser
# Whose classes' arguments are options too, as are those of ours.
FOLLOWED = ("torch.optim", "lightning.pytorch.callbacks", "lightning.pytorch.profilers")
RUNS = ["runs/*/*/config.yaml"]
# Values that no type tells.
VALUES = {
    "--run": RUNS,
    "--weights": RUNS,
    "--model.pretrained": RUNS,
    "--ckpt_path": ["best", "last", "auto"],
    "--trainer.accelerator": ["auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators())],
    "--trainer.strategy": ["auto", *StrategyRegistry.available_strategies()],
    "--only": list(CHECKS),
    "--skip": list(CHECKS),
}

# What may follow: the word typed so far, the one before it, the verb -> the array `reply`, in bash and in zsh.
REPLY = """\
# TAB after `python -m @NAME@`: source this file in @SHELL@, after bash-completion or compinit if you have them.
# Made by `python -m @NAME@ completion @SHELL@`; make it again when options or classes are added.
_@NAME@_reply() {
  [[ -z ${ZSH_VERSION-} ]] || emulate -L sh
  local typed=$1 list= word rest last=" "
  if [[ -z $3 ]]; then list="@VERBS@"
  elif [[ $1 == -* ]]; then
    typed=${typed//init_args./}  # may be written, and need not be
    case $3 in
@OPTIONS@
    esac
  else
    case ${2//init_args./} in
@VALUES@
    esac
  fi
  for word in $list; do
    [[ $word == "$typed"* && $word != *\\** ]] || continue
    rest=${word:${#typed}}
    [[ $1 != -* || $rest != *.* ]] || rest=${rest%%.*}.  # as a folder is completed before what it holds
    [[ $rest == "$last" ]] || reply+=("$1${rest%/config.yaml}")
    last=$rest
  done
}
"""

BASH = """
_@NAME@() {
  local line="${COMP_WORDS[*]:0:COMP_CWORD} " typed=$2 before=$3 reply=()
  if [[ $line == *" -m @NAME@ "* ]]; then
    [[ $typed != "=" ]] || typed=  # bash takes --option=value for three words
    [[ $before != "=" ]] || before=${COMP_WORDS[COMP_CWORD-2]}
    line=${line#*" -m @NAME@ "}
    _@NAME@_reply "$typed" "$before" "${line%% *}"
    COMPREPLY=("${reply[@]}")
  elif [[ -n $_@NAME@_else ]]; then
    $_@NAME@_else "$@"
    return
  fi
  [[ -n $reply ]] || compopt -o bashdefault -o default
  [[ $reply != *. ]] || compopt -o nospace
}
_@NAME@_completer() { complete -p "$@" 2> /dev/null | sed -n 's/.* -F \\([^ ]*\\).*/\\1/p'; }
if [[ -z ${_@NAME@_else+set} ]]; then
  _@NAME@_else=$(_@NAME@_completer -D)  # loads the completion of python, where bash-completion is installed
  [[ -z $_@NAME@_else || -n $(_@NAME@_completer python) ]] || $_@NAME@_else python
  _@NAME@_else=$(_@NAME@_completer python)
  complete -F _@NAME@ python python3
fi
"""

ZSH = """
_@NAME@() {
  local line="${words[1,CURRENT-1]} " before=$words[CURRENT-1]
  local -a reply
  if [[ $line != *" -m @NAME@ "* ]]; then
    $_@NAME@_else "$@"
    return
  fi
  compset -P '--*=' && before=${IPREFIX%=}
  _@NAME@_reply "$PREFIX" "$before" "${${line#* -m @NAME@ }%% *}"
  local -a groups=(${(M)reply:#*.}) whole=(${reply:#*.})
  compadd -S "" -a groups
  compadd -a whole || (( $#groups )) || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
if (( ! $+_@NAME@_else )); then
  _@NAME@_else=${_comps[python]:-_python}
  compdef _@NAME@ python python3
fi
"""

SHELLS = {"bash": BASH, "zsh": ZSH}


def shown_options(verb: str) -> Iterator[tuple[str, list[str]]]:
    """Options that --help shows, each with the values that it names."""
    with redirect_stdout(StringIO()) as shown, suppress(SystemExit):
        import_module(VERBS[verb][0]).main([verb, "--help"])
    for option, values in re.findall(r"^  (?:-\w.*?, )?(--[\w.]+)(?: \{(.*?)\})?", shown.getvalue(), re.MULTILINE):
        yield option, values.split(",")


def options_of(part: Any, key: str, definitions: Any, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Options that a part of the schema stands for, each with its values.

    Args:
        part: of the schema.
        key: the part's own option.
        definitions: of the schema.
        inside: classes of the kinds that hold the part. None holds another of its kind: no task is a task's encoder.
    """
    yield key, [*map(str, part.get("enum", [])), *(["true", "false"] if "boolean" in part.get("type", "") else [])]
    for alternative in part.get("anyOf", []):
        yield from options_of(alternative, key, definitions, inside)
    if "items" in part:
        yield from (found for found in options_of(part["items"], key, definitions, inside) if found[0] == key)
    for name, nested in part.get("properties", {}).items():
        yield from options_of(nested, f"{key}.{name}", definitions, inside)
    if "$ref" in part:
        name = part["$ref"].removeprefix("#/$defs/")
        if "anyOf" in definitions[name]:  # a class path, or it with init_args
            paths = [path for path in definitions[name]["anyOf"][0]["anyOf"][0]["enum"] if path not in inside]
            own = [path for path in paths if path.startswith(f"{PACKAGE}.")]
            paths = paths if key.startswith("--trainer") else own or paths
            yield key, paths
            for path in paths:
                if "+" not in key and (path in own or path.rpartition(".")[0] in FOLLOWED):
                    yield from options_of(definitions[path], key, definitions, (*inside, *paths))
        elif name not in inside:
            yield from options_of(definitions[name], key, definitions, (*inside, name))


def cases(table: dict[str, list[str]]) -> str:
    """The branches of a shell's `case`, one for all that have the same words."""
    same = defaultdict(list)
    for pattern, words in table.items():
        same[" ".join(words)].append(pattern)
    return "\n".join(f'      {"|".join(patterns)}) list="{words}" ;;' for words, patterns in same.items() if words)


def script(shell: str) -> str:
    """The script that completes the command line in a shell."""
    schema = configuration_schema()
    properties = schema["properties"].items()
    configured = [found for name, part in properties for found in options_of(part, f"--{name}", schema["$defs"])]
    configured += shown_options("fit")
    groups = {f"--{name}" for name, part in properties if "properties" in part}
    options, values = {}, {option: list(words) for option, words in VALUES.items()}
    for verb in VERBS:
        found = [*(configured if verb in CONFIGURED else []), *shown_options(verb)]
        options[verb] = sorted({option for option, _ in found} - groups | ({"--run"} if verb in RESUMED else set()))
        for option, words in found:
            known = values.setdefault(option, [])
            known += [word for word in words if re.fullmatch(r"[\w.+/:-]+", word) and word not in known]
    parts = {
        "NAME": PACKAGE,
        "SHELL": shell,
        "VERBS": " ".join([*VERBS, "--help", "--version"]),
        "OPTIONS": cases(options),
        "VALUES": cases(values),
    }
    return re.sub("@([A-Z]+)@", lambda match: parts[match[1]], REPLY + SHELLS[shell])


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: no such shell.
    """
    parser = Options("completion", __doc__)
    parser.add_argument("shell", choices=SHELLS, help="whose script goes to standard output")
    print(script(parser.parse_args(arguments[1:]).shell), end="")
