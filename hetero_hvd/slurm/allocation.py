"""What Slurm has granted: read from a job's environment, given as nodes.yaml would say it."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hetero_hvd.config.launchers import SRUN
from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.core.digits import whole_number
from hetero_hvd.errors import UserError
from hetero_hvd.slurm.granted_gpus import gpus_to_ask_for
from hetero_hvd.slurm.jobs import job_records
from hetero_hvd.slurm.programs import ask

CLUSTER = "SLURM_CLUSTER_NAME"
MAX_SHOWN = 40
"""Characters of a variable, in a message."""

MAX_CLUSTER = 20
"""Of its name, in that of a run, which has room for no more."""

_NOT_IN_A_RUN = re.compile(r"[^A-Za-z0-9_]+")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, kw_only=True)
class GrantedNode:
    """A node of the allocation.

    Attributes:
        slurm_name: As Slurm calls it.
        group: Component of a heterogeneous job that it belongs to; None: the job has one part.
        gpus: What a step there has to give as `--gpus`; empty: nothing.
    """

    slurm_name: str
    group: int | None = None
    gpus: str = ""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A Slurm job.

    Attributes:
        number: Slurm's own of the job, of the first component if it is heterogeneous. Not to be
            asked for: of an array's last task it is that of all its tasks.
        label: Of the job as people write it, `12` or of an array `12_3`; what Slurm's programs are
            to be asked for, and the same after a requeue.
        nodes: In the order of Slurm's lists.
        cluster: Slurm's name of it; empty: it is not known.
    """

    number: int
    label: str
    nodes: tuple[GrantedNode, ...]
    cluster: str = ""

    @property
    def run_name(self) -> str:
        """What the job's run is called, through all its requeues.

        Others keep checkpoints in the same store: other clusters have the same numbers of jobs.
        """
        cluster = _NOT_IN_A_RUN.sub("_", self.cluster)[:MAX_CLUSTER]
        return "-".join(filter(None, ("slurm", cluster, str(os.getuid()), self.label)))


def allocation(environment: Mapping[str, str]) -> Allocation:
    """The job in which this process runs.

    Args:
        environment: Of this process; of its variables only SLURM_JOB_ID and SLURM_CLUSTER_NAME
            are surely this job's own.

    Raises:
        UserError: It runs in none, or Slurm does not say which nodes that has.
    """
    number = environment.get("SLURM_JOB_ID", "")
    if whole_number(number) is None:
        why = f"{number[:MAX_SHOWN]!r}, which is no number of a job" if number else "not set"
        raise UserError(
            f"--slurm: this is no Slurm job, as SLURM_JOB_ID is {why}; call it in a script of "
            "sbatch or in a shell of salloc"
        )
    own = next((job for job in job_records(number) if job.number == number), None)
    parts = job_records(own.reference) if own is not None else []
    gpus = gpus_to_ask_for(own.reference) if own is not None else {}
    nodes = [
        GrantedNode(slurm_name=name, group=part.group, gpus=gpus.get((part.group, name), ""))
        for part in parts
        if part.has_nodes
        for name in ask("scontrol", "show", "hostnames", part.nodes).split()
    ]
    if own is None or not nodes:
        raise UserError(
            f"--slurm: job {number}, which SLURM_JOB_ID names, has no nodes: it has ended, or has "
            "not begun"
        )
    return Allocation(
        number=int(parts[0].number),
        label=own.reference,
        nodes=tuple(nodes),
        cluster=environment.get(CLUSTER, ""),
    )


def as_yaml(granted: Allocation) -> bytes:
    """The nodes of an allocation as nodes.yaml would list them."""
    addresses = _addresses(node.slurm_name for node in granted.nodes)
    entries, names = [], set[str]()
    for node in granted.nodes:
        options = {"nodelist": node.slurm_name}
        if node.group is not None:
            options["het-group"] = str(node.group)
        if node.gpus:
            options["gpus"] = node.gpus
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
    """Where the nodes are reached from each other.

    By their names; where a name is unknown here, or means this machine only (Debian's /etc/hosts
    has `127.0.1.1 NAME` on each), where Slurm reaches the node; and where that is its name again,
    the address that this machine has towards another node.
    """
    found = {name: name for name in names}
    if len(found) == 1:
        return found if any(map(_ipv4, found)) else found | _told(found)
    ours = [name for name in found if not _is_of_use(name)]
    found |= _told(ours)
    outside = next((address for address in found.values() if _is_of_use(address)), "")
    for name in ours:
        if outside and any(map(is_loopback, _ipv4(found[name]))):
            found[name] = _own_address_towards(outside) or found[name]
    return found


def _told(names: Iterable[str]) -> dict[str, str]:
    """Where Slurm reaches nodes, as far as it says."""
    unknown = set(names)
    if not unknown:
        return {}
    text = ask("scontrol", "show", "node", "--oneliner", ",".join(sorted(unknown)))
    lines = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in text.splitlines()]
    return {
        about["NodeName"]: about["NodeAddr"]
        for about in lines
        if about.get("NodeName") in unknown and about.get("NodeAddr")
    }


def _is_of_use(name: str) -> bool:
    """Whether others can reach a node there, too."""
    addresses = _ipv4(name)
    return bool(addresses) and not any(map(is_loopback, addresses))


def _ipv4(name: str) -> list[str]:
    """What a name means on this machine; IPv4, as Horovod knows nothing else."""
    try:
        return socket.gethostbyname_ex(name)[2]
    except (OSError, UnicodeError):
        return []


def _own_address_towards(name: str) -> str:
    """This machine's address on the way to another one; empty: there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((name, 9))  # sends nothing
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
    return address
