"""What Slurm has granted: read from a job's environment, given as nodes.yaml would say it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hetero_hvd.config.launchers import SRUN
from hetero_hvd.errors import UserError
from hetero_hvd.slurm.programs import ask

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, kw_only=True)
class GrantedNode:
    """A node of the allocation.

    Attributes:
        slurm_name: As Slurm calls it.
        group: Component of a heterogeneous job that it belongs to; None: the job has one part.
    """

    slurm_name: str
    group: int | None = None


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A Slurm job.

    Attributes:
        job_id: Of the job, of the first component if it is heterogeneous.
        label: Of the job as people write it, `12` or of an array `12_3`; the same after a requeue.
        nodes: In the order of Slurm's lists.
    """

    job_id: str
    label: str
    nodes: tuple[GrantedNode, ...]

    @property
    def run_name(self) -> str:
        """What the job's run is called, through all its requeues."""
        return f"slurm-{self.label}"


def allocation(environment: Mapping[str, str]) -> Allocation:
    """The job in which this process runs.

    Args:
        environment: Of this process.

    Raises:
        UserError: It runs in none, or Slurm does not say which nodes that has.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        raise UserError(
            "--slurm: this is no Slurm job, as SLURM_JOB_ID is not set; call it in a script of "
            "sbatch or in a shell of salloc"
        )
    array, task = (environment.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
    size = environment.get("SLURM_HET_SIZE", "")
    groups = range(int(size)) if size.isdigit() else (None,)
    nodes = [node for group in groups for node in _nodes(environment, group)]
    if not nodes:
        raise UserError("--slurm: SLURM_JOB_NODELIST is not set; Slurm sets it in every job")
    label = f"{array}_{task}" if array and task else job_id
    return Allocation(job_id=job_id, label=label, nodes=tuple(nodes))


def _nodes(environment: Mapping[str, str], group: int | None) -> Iterable[GrantedNode]:
    suffix = "" if group is None else f"_HET_GROUP_{group}"
    expression = environment.get(f"SLURM_JOB_NODELIST{suffix}", "")
    names = ask("scontrol", "show", "hostnames", expression).split() if expression else []
    return [GrantedNode(slurm_name=name, group=group) for name in names]


def as_yaml(granted: Allocation) -> bytes:
    """The nodes of an allocation as nodes.yaml would list them."""
    addresses = _addresses(node.slurm_name for node in granted.nodes)
    entries, names = [], set[str]()
    for node in granted.nodes:
        options = {"nodelist": node.slurm_name}
        if node.group is not None:
            options["het-group"] = str(node.group)
        name = _unique(_NOT_IN_A_NAME.sub("-", node.slurm_name).strip(".-"), names)
        names.add(name)
        address = addresses[node.slurm_name]
        entries.append(
            {"name": name, "address": address, "launcher": SRUN.name, "srun_options": options}
        )
    return json.dumps({"nodes": entries}).encode()


def _unique(name: str, taken: set[str]) -> str:
    """Components of a heterogeneous job may share a node; each part of it is a node here."""
    number = 2
    unique = name
    while unique in taken:
        unique = f"{name}-{number}"
        number += 1
    return unique


def _addresses(names: Iterable[str]) -> dict[str, str]:
    """Where the nodes are reached: by their names, or where Slurm reaches those without."""
    found = {name: name for name in names}
    unknown = [name for name in found if not _is_known(name)]
    if unknown:
        text = ask("scontrol", "show", "node", "--oneliner", ",".join(unknown))
        for line in text.splitlines():
            about = dict(re.findall(r"(\w+)=(\S+)", line))
            if about.get("NodeName") in unknown and about.get("NodeAddr"):
                found[about["NodeName"]] = about["NodeAddr"]
    return found


def _is_known(name: str) -> bool:
    try:
        socket.gethostbyname(name)
    except OSError:
        return False
    return True
