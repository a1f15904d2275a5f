"""Programs of Slurm that answer as they are told, in the place of its own."""

import pytest

from hetero_hvd.slurm import agent_jobs

SCONTROL = r"""#!/bin/sh
case "$1 $2" in
  "show hostnames")
    case $3 in
      "fast[1-2]") printf 'fast1\nfast2\n' ;;
      *) echo "$3" | tr , '\n' ;;
    esac ;;
  "show job") cat "$0.job" ;;
  "requeue"*) echo "$2" >> "$0.requeued" ;;
  "show node") cat "$0.nodes" ;;
  "write batch_script") cat "$0.script" ;;
  *) echo "Invalid request" >&2; exit 1 ;;
esac
"""
SQUEUE = r"""#!/bin/sh
job=
for word; do case $word in --jobs=*) job=${word#--jobs=} ;; esac; done
[ -n "$job" ] || exec cat "$0.answer"
awk -F'|' -v job="$job" \
  '{ split($2, base, /[_+]/); if ($1 == job || $2 == job || base[1] == job) print }' "$0.jobs"
"""
"""Asked for the number of an array it gives all tasks, as Slurm's own does; asked for none, what it
is told to answer."""

NODES = "NodeName={} Arch=x86_64 NodeAddr={} NodeHostName=vm Port=1 Comment=a b\n"
ABOUT = "JobId=12 JobName=a Requeue=0 b Requeue={requeue} Restarts=0 BatchFlag={batch} Reboot=0\n"
"""The name of a job may be any text."""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Folder of programs that stands first in PATH, with what they know beside them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in {"scontrol": SCONTROL, "squeue": SQUEUE}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "squeue.jobs").write_text("12|12|RUNNING|10:00|fast1\n")
    (folder / "scontrol.job").write_text(ABOUT.format(requeue=1, batch=1))
    names = ("fast1", "fast2", "slow1", "gpu_1", "gpu.1", "_gpu_1", "gpu-1")
    lines = [NODES.format(name, f"10.0.0.{number}") for number, name in enumerate(names, start=1)]
    (folder / "scontrol.nodes").write_text("".join(lines))
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


SBATCH = r"""#!/bin/sh
echo "$*" >> "$0.asked"
pwd > "$0.folder"
env > "$0.environment"
case "$*" in *bad.sh) echo "sbatch: error: invalid partition" >&2; exit 1 ;; esac
number=$(wc -l < "$0.asked" | tr -d ' ')
for word; do case $word in --comment=*)
  echo "$number N/A PENDING ${word#--comment=}" >> "${0%/*}/squeue.answer" ;;
esac; done
echo "$number;cluster"
"""
SCANCEL = """#!/bin/sh
echo "$*" >> "$0.asked"
: > "${0%/*}/squeue.answer"
"""


@pytest.fixture
def arrays(programs, tmp_path, monkeypatch):
    """A folder with two pools of agents, none of which Slurm has; programs note what is asked."""
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    folder = tmp_path / "a b"
    folder.mkdir()
    for pool in ("cpu", "gpu"):
        (folder / f"agents-{pool}.sh").touch()
    monkeypatch.setattr(agent_jobs, "END_SECONDS", 0.0)
    (programs / "squeue.answer").touch()
    return folder
