"""Programs of Slurm that answer as they are told, in the place of its own."""

import pytest

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
SQUEUE = """#!/bin/sh
cat "$0.answer"
"""
NODES = "NodeName={} Arch=x86_64 NodeAddr={} NodeHostName=vm Port=1 Comment=a b\n"


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Folder of programs that stands first in PATH, with what they know beside them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in {"scontrol": SCONTROL, "squeue": SQUEUE}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    names = ("fast1", "fast2", "slow1", "gpu_1", "gpu.1", "_gpu_1", "gpu-1")
    lines = [NODES.format(name, f"10.0.0.{number}") for number, name in enumerate(names, start=1)]
    (folder / "scontrol.nodes").write_text("".join(lines))
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder
