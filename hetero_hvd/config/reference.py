"""The page of all settings, docs/reference/nodes-yaml.md; `scripts/pages` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetero_hvd.config.cluster import ClusterConfig
from hetero_hvd.config.effective_settings import value_text
from hetero_hvd.config.job import JOB_SETTINGS, JobConfig
from hetero_hvd.config.setting import Setting, settings_of
from hetero_hvd.config.value_types import ListOf, Section
from hetero_hvd.config.variables import (
    ALONE_SETTINGS,
    ON_NODES,
    SET_FOR_GUARD_COMMAND,
    SET_FOR_WORKERS,
)

_INTRODUCTION = """\
# nodes.yaml

Generated from the code by `scripts/pages`; a test compares the two.

The file names the machines of a job and, if you like, how the job runs. The smallest one:

```yaml
nodes:
  - name: alpha
  - name: beta
    address: 10.0.0.2
```

- Each setting decides how its text is read, not YAML: `slots: 010` and `slots: 1_0` are refused,
  and a text that YAML would take for something else (`name: no`, `name: 12`) must be quoted. The
  values in `env`, `ssh_options` and `srun_options` are taken as they are written.
- A key without a value stands for its default. Unknown and repeated keys are errors; so are
  anchors, aliases, tags, more than one document, and files over 1 MiB.
- All problems of the file, the environment and the flags are listed at once, with line, key, what
  was found, what is allowed and the nearest known key; the exit code is 2.
- A running job reads the file again when its content changes. A broken edit is refused with the
  reason and the job goes on with the old settings. Replace the file by `mv`, so that no half of it
  is read.
- `-f base.yaml -f prod.yaml`: each further file changes and adds to those before it: settings key
  by key, nodes by their name; any other list takes the place of the one before, and a key without
  a value is the default again. `null` or `~` in `env`, `ssh_options` or `srun_options` takes away
  what an earlier file has there, and is an error where none has: it unsets nothing on a node. A
  mapping, a list and a text take each other's place nowhere.
- `hetero-hvd config` prints every setting, its value and where that came from.
"""

_ALONE = """\
## Environment variables without `hetero-hvd run`

A script that runs under `horovodrun`, or alone, has no nodes.yaml. These variables take the place
of the job's settings of the same name; what the script gives to `Trainer` counts more. All workers
must have the same. `HETERO_HVD_BALANCE` may also hold all settings of the balancer as JSON, for
example `{"rule": "lbb", "exchange_seconds": 0.5}`: the fields of `core/balance/settings.py`.

A variable that begins with `HETERO_HVD_` and is on none of this page's lists is an error for every
command that reads the settings, for an agent and a hub, and a warning for such a script.
"""

_ON_NODES = """## Environment variables on a node
For agents, supervisors and workers, in the environment in which they start.
"""

_FOR_THE_COMMAND = """## Environment variables of `guard.command`
"""

_FOR_WORKERS = """\
## Environment variables of a worker

Under `hetero-hvd run` the driver decides, for all workers alike, and sets these. A script may read
`HETERO_HVD_WORKER`; the others are no interface and may change.
"""


def reference() -> str:
    """The whole page."""
    lines = [_INTRODUCTION]
    lines += ["## Top level", "", *_table(ClusterConfig), ""]
    lines += ["## `nodes`: one entry for each machine", "", *_table(_item("nodes")), ""]
    emulate = next(s.kind for s in settings_of(_item("nodes")) if s.name == "emulate")
    assert isinstance(emulate, Section)  # noqa: S101 - by its declaration
    lines += ["## `nodes[].emulate`", "", _summary(emulate.of), "", *_table(emulate.of), ""]
    guard = next(s.kind for s in settings_of(ClusterConfig) if s.name == "guard")
    assert isinstance(guard, Section)  # noqa: S101 - by its declaration
    lines += ["## `guard`", "", _summary(guard.of), "", *_table(guard.of), ""]
    pools = _item("pools")
    lines += ["## `pools`: one entry for each", "", _summary(pools), "", *_table(pools), ""]
    lines += ["## `job`", "", "A flag beats the environment, which beats the file.", ""]
    lines += [*_table(JobConfig), "", "| Key | Environment variable | Flag |", "|---|---|---|"]
    lines += [f"| `{s.name}` | `{s.variable}` | `{flag_text(s.name)}` |" for s in JOB_SETTINGS]
    lines += ["", _ALONE, "| Variable | Must be | Default | Meaning |", "|---|---|---|---|"]
    lines += [f"| `{setting.variable}` | {_about(setting)} |" for setting in ALONE_SETTINGS]
    lines += ["", _FOR_WORKERS, "| Variable | Holds |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in SET_FOR_WORKERS.items()]
    lines += ["", _FOR_THE_COMMAND, "| Variable | Holds |", "|---|---|"]
    lines += [f"| `{name}` | {words} |" for name, (_, words) in SET_FOR_GUARD_COMMAND.items()]
    lines += ["", _ON_NODES, "| Variable | Holds |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in ON_NODES.items()]
    return "\n".join(lines) + "\n"


def flag_text(name: str) -> str:
    """A job setting's flag as one types it."""
    setting = next(setting for setting in JOB_SETTINGS if setting.name == name)
    if isinstance(setting.default, bool):
        return f"{setting.flag}, --no-{setting.flag.removeprefix('--')}"
    return setting.flag


def _item(name: str) -> type[Any]:
    """The section that a list at the top level holds."""
    kind = next(setting.kind for setting in settings_of(ClusterConfig) if setting.name == name)
    assert isinstance(kind, ListOf)  # noqa: S101 - by its declaration
    assert isinstance(kind.item, Section)  # noqa: S101
    return kind.item.of


def _summary(section: type[Any]) -> str:
    return " ".join((section.__doc__ or "").split())


def _table(section: type[Any]) -> Iterator[str]:
    yield "| Key | Must be | Default | Meaning |"
    yield "|---|---|---|---|"
    for setting in settings_of(section):
        yield f"| `{setting.name}` | {_about(setting)} |"


def _about(setting: Setting) -> str:
    """What it must be, its default, and its meaning."""
    if setting.is_required:
        default = "must be given"
    elif isinstance(setting.kind, Section) and setting.default is not None:
        default = "all defaults"
    else:
        default = value_text(setting, setting.default)
    meaning = setting.doc.replace("|", "\\|")
    return f"{setting.kind.allowed} | {default} | {meaning}"
