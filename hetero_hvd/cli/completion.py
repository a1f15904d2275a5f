"""Scripts with which a shell completes our commands; the only module that imports shtab.

They are static: a tab costs no start of Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from hetero_hvd.cli.parsing import PROGRAM
from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.errors import JobError

RUN = {"bash": "_hetero_hvd_runs", "zsh": "_hetero_hvd_runs", "fish": "(_hetero_hvd_runs)"}
PREAMBLE = {
    "bash": """\
_hetero_hvd_runs() {
  local folder name
  compgen -W latest -- "$1"
  for folder in runs/*/; do
    name=
    { read -r name <"${folder}.run-name"; } 2>/dev/null
    folder=$(basename "$folder")
    [[ -n $name && $name == "$1"* ]] && printf '%q\\n' "$name"
    [[ -z $name || -n $1 ]] && [[ -d runs/$folder && $folder == "$1"* ]] && echo "$folder"
  done
  compgen -d -- "$1"
}
""",
    "zsh": """\
_hetero_hvd_runs() {
  local folder name
  local -a found=(latest)
  for folder in runs/*(N/); do
    name=
    { read -r name <$folder/.run-name } 2>/dev/null
    [[ -n $name ]] && found+=($name)
    [[ -z $name || -n $PREFIX ]] && found+=(${folder:t})
  done
  _alternative 'runs:run:compadd -a found' 'folders:folder:_files -/'
}
""",
    "fish": """\
function _hetero_hvd_runs
  set -l typed (commandline -ct)
  echo latest
  for folder in runs/*/
    set -l name (head -n 1 $folder/.run-name 2>/dev/null)
    test -n "$name"; and echo $name
    test -z "$name" -o -n "$typed"; and path basename $folder
  end
  __fish_complete_directories
end
""",
}
"""What completes runs: `latest`, their names, the folders of those without one, also of the others
once something is typed; a run that an earlier version has recorded has no file with its name."""


def script_for(shell: str, parser: argparse.ArgumentParser) -> str:
    """What that shell is to read.

    Args:
        shell: One of `SHELLS`.
        parser: With all commands; is changed.

    Raises:
        JobError: shtab is not installed.
    """
    try:
        import shtab  # noqa: PLC0415 - for this alone
    except ImportError as error:
        raise JobError("--completion: needs shtab: pip install shtab") from error
    for action in _actions(parser):
        if (kind := _completed(action)) is not None:
            action.complete = kind  # type: ignore[attr-defined] # as shtab wants it
    preamble: Any = PREAMBLE  # a text for each shell, which shtab's own annotation does not know
    script = str(shtab.complete(parser, shell, root_prefix=PROGRAM, preamble=preamble))
    # zsh: shtab 1.13 completes the first of several runs alone.
    return script.replace('\n  "(*):', '\n  "*:') if shell == "zsh" else script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of a parser and of all its commands."""
    for action in parser._actions:  # noqa: SLF001 - argparse does not tell otherwise
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for command in action.choices.values():
                yield from _actions(command)


def _completed(action: argparse.Action) -> dict[str, Any] | None:
    """How a shell finds the values of an option or argument; None: it cannot know them."""
    from shtab import DIRECTORY, FILE  # noqa: PLC0415 - for this alone

    if (action.metavar or "") in ("RUN", "RUN|URL"):
        return RUN
    if action.metavar == "DIR" or action.dest in ("folder", "output"):
        return DIRECTORY
    is_path = action.type in (some_path, path_text) or action.metavar in ("FILE", "PATH", "SCRIPT")
    return FILE if is_path or action.dest.endswith("_file") else None
