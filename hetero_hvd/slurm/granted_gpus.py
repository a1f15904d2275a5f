"""How many GPUs a job has on each node, where a step has to ask for them by number.

A step has by itself what its job has on each node (`--gpus-per-node`). Of a number for the whole
job (`--gpus`) or for a socket Slurm makes one of the step's single node, and refuses it there.
"""

from __future__ import annotations

import re

from hetero_hvd.slurm.programs import ask

_IS_OF_ANOTHER_WHOLE = re.compile(r"\sTresPer(Job|Socket)=\S*gpu")
_NODES = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu:((?:[^:,()]+:)?\d+)")
_OFFSET = re.compile(r"\sHetJobOffset=(\d+)")


def gpus_to_ask_for(label: str) -> dict[tuple[int | None, str], str]:
    """The value of srun's `--gpus` by component and node; nothing where a step needs none.

    Args:
        label: Of the job, see `Allocation`.

    Raises:
        JobError: Slurm does not say.
    """
    found: dict[tuple[int | None, str], str] = {}
    for job in ask("scontrol", "show", "job", "--details", "--oneliner", label).splitlines():
        if not _IS_OF_ANOTHER_WHOLE.search(job):
            continue
        offset = _OFFSET.search(job)
        group = int(offset[1]) if offset else None
        for nodes, resources in _NODES.findall(job):
            if gpus := ",".join(_GPUS.findall(re.sub(r"\([^)]*\)", "", resources))):
                names = ask("scontrol", "show", "hostnames", nodes).split()
                found |= {(group, name): gpus for name in names}
    return found
