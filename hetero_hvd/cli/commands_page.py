"""The page docs/reference/commands.md, from what is declared in `commands.py`."""

from __future__ import annotations

from collections.abc import Iterator

from hetero_hvd.cli.commands import ALIASES, GROUPS

HEAD = """\
# Commands

Written by `scripts/pages` from the code. `hetero-hvd --help` lists the same; `hetero-hvd COMMAND
--help` tells all options of one, with an example. A wrong word is one line and [exit
code](exit-codes.md) 2.

"""
TAIL = """\
## What they share

**A script** follows the options, with or without `--` before it: `hetero-hvd run --min-np 2
train.py --epochs 3`. All behind its name is its own. `--` is needed where the first word begins
with a dash, and for `deploy`.

**A run** is named by its output folder; by the name of its folder in `runs/`, or by what `--name`
called it; by the beginning of either, where only one run begins so; or by `latest`, which is what
`top`, `report`, `cost`, `export` and `advise` take without a word. A whole name counts more than
the beginning of another. Where several could be meant, they are listed and nothing is done (exit
code 2).

**`--json`** is taken by all that list or judge something. What is not known is null.

**Completion** by tab, of commands, options, their values, files and runs: a script that a shell
reads once, so that a tab starts no Python. For zsh the folder has to be in `fpath`.

```
hetero-hvd --completion bash > ~/.local/share/bash-completion/completions/hetero-hvd
hetero-hvd --completion zsh > ~/.zfunc/_hetero-hvd
```

**Former names** go on to work: {aliases}.
"""


def reference() -> str:
    """The page."""
    aliases = ", ".join(f"`{old}` is `{' '.join(new)}`" for old, new in ALIASES.items())
    return HEAD + "".join(_tables()) + TAIL.format(aliases=aliases)


def _tables() -> Iterator[str]:
    for title, group in GROUPS.items():
        yield f"## {title}\n\n| command | what it does | example |\n|---|---|---|\n"
        for name, command in group.items():
            yield f"| `{name}` | {command.summary} | `hetero-hvd {command.example}` |\n"
        yield "\n"
