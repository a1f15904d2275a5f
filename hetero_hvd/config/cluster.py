"""All settings together, and those of the guard over all nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from hetero_hvd.config.job import JobConfig
from hetero_hvd.config.node import NodeConfig
from hetero_hvd.config.setting import check, setting
from hetero_hvd.config.value_types import (
    COMMAND,
    NAME,
    WEBHOOK,
    ListOf,
    Section,
    boolean,
    choice,
    integer,
    number,
)
from hetero_hvd.core.guard.limits import GuardLimits, Reply
from hetero_hvd.core.queue.devices import DevicePool

LIST = "a list of at least one node, each with its own name"
MAX_CELSIUS = 150.0
_REPLY = choice(*get_args(Reply))


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Lets the workers of an ailing device go before it fails; see docs/operations/guard.md.

    `guard: {}` has all defaults; without the key nobody is let go.
    """

    temperature: float = setting(
        number(minimum=0, maximum=MAX_CELSIUS),
        "of a GPU, °C: at it, or above, it is too hot; 0 = no limit",
        default=GuardLimits.temperature,
    )
    cpu_temperature: float = setting(
        number(minimum=0, maximum=MAX_CELSIUS),
        "the same of the processors, for workers that have no GPU; 0 = no limit",
        default=GuardLimits.cpu_temperature,
    )
    for_seconds: float = setting(
        number(minimum=0, maximum=3600),
        "for which a device must be too hot, or throttled, without a break",
        default=GuardLimits.for_seconds,
    )
    return_degrees: float = setting(
        number(above=0, maximum=MAX_CELSIUS),
        "below its limit, °C: so cool it must be to count as well again",
        default=GuardLimits.return_degrees,
    )
    return_seconds: float = setting(
        number(minimum=0, maximum=86400),
        "for which a device must be well before its workers come back; twice as long each "
        "further time, up to an hour",
        default=GuardLimits.return_seconds,
    )
    throttled: Reply = setting(
        _REPLY,
        "what follows when heat or the power supply holds a GPU's clock down for for_seconds",
        default=GuardLimits.throttled,
    )
    xid: Reply = setting(
        _REPLY,
        "what follows from an error of the hardware that NVIDIA's driver reports; what programs "
        "cause is left out",
        default=GuardLimits.xid,
    )
    ecc: Reply = setting(
        _REPLY,
        "what follows from an error of a GPU's memory that could not be corrected",
        default=GuardLimits.ecc,
    )
    webhook: str | None = setting(
        WEBHOOK,
        "where each episode is told once, as JSON; never shown",
        default=None,
        default_text="none",
    )
    command: tuple[str, ...] = setting(
        COMMAND,
        "run on the driver's machine for each episode, without a shell",
        default=(),
        default_text="none",
    )

    def __post_init__(self) -> None:
        """Check."""
        check(self, self._relations())

    def _relations(self) -> Iterator[tuple[str, str]]:
        for name in ("temperature", "cpu_temperature"):
            limit = getattr(self, name)
            if 0 < limit <= self.return_degrees:
                yield name, f"found {limit:g}, must be above return_degrees or 0"

    @property
    def limits(self) -> GuardLimits:
        """What counts, for `core.guard`."""
        names = [field.name for field in dataclasses.fields(GuardLimits)]
        return GuardLimits(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """What a hub's queue may do with the devices of a pool; a job that runs alone reads none of it.

    A pool that is not listed here has all defaults.
    """

    name: str = setting(NAME, "that nodes have as their pool; unique")
    lends: bool = setting(
        boolean(),
        "whether jobs of other pools may use what its own leave idle, until they want it",
        default=DevicePool.lends,
    )
    max_devices_per_user: int = setting(
        integer(0),
        "most that one user's jobs have of it while others want more; 0 = as many as there are",
        default=DevicePool.max_devices_per_user,
    )


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Everything that nodes.yaml, the environment and the flags say together.

    Attributes:
        follows_lender: Whether nodes are granted, and others may be at any time.
        files: That were read, the strongest last.
        sources: Setting, such as `nodes[0].slots`, to where its value came from: `FILE:LINE`,
            `environment`, `flag` or `default`.
    """

    job: JobConfig = setting(Section(JobConfig), "settings of the job", default_factory=JobConfig)
    nodes: tuple[NodeConfig, ...] = setting(
        ListOf(
            Section(NodeConfig),
            LIST,
            unique="name",
        ),
        "the machines; with job.discover the list may be empty",
    )
    guard: GuardConfig | None = setting(
        Section(GuardConfig),
        "lets the workers of an ailing device go, and come back; `{}` has all defaults",
        default=None,
        default_text="no guard",
    )
    pools: tuple[PoolConfig, ...] = setting(
        ListOf(Section(PoolConfig), "a list of pools, each with its own name", unique="name"),
        "who may have how much, where a hub's queue gives devices to jobs; see docs/guide/queue.md",
        default=(),
        default_text="each as if it were listed by its name alone",
    )
    follows_lender: bool = field(default=False, compare=False)
    files: tuple[Path, ...] = field(default=(Path("nodes.yaml"),), compare=False)
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Check."""
        check(self, self._relations())

    @property
    def where(self) -> str:
        """The files, for a sentence."""
        return " and ".join(map(str, self.files))

    @property
    def may_grow(self) -> bool:
        """Whether nodes may come, and come back, of which no file says anything."""
        return self.job.discover or self.follows_lender

    def _relations(self) -> Iterator[tuple[str, str]]:
        if not self.nodes and not self.may_grow:
            yield "nodes", f"found an empty list, must be {LIST}"
            return
        if self.guard is not None and not self.job.sample_seconds:
            yield "job.sample_seconds", "found 0, must be at least 1 for guard, which needs samples"
        of_nodes = {node.pool for node in self.nodes}
        for index, pool in enumerate(self.pools):
            if pool.name not in of_nodes and not self.may_grow:
                known = ", ".join(sorted(of_nodes))
                yield f"pools[{index}].name", f"found {pool.name!r}, no node has it, but {known}"
        for index, node in enumerate(self.nodes):
            has_key = node.identity_file or self.job.cluster_key_file
            if node.kind.uses_cluster_key and not has_key:
                yield (
                    f"nodes[{index}].identity_file",
                    "found none, must be the cluster key of the agent, or set job.cluster_key_file",
                )
        slots = [node.declared_slots for node in self.nodes]
        total = sum(slot or 0 for slot in slots)
        found = self.job.min_np
        if None not in slots and found > total and not self.may_grow:
            yield "job.min_np", f"found {found}, must be at most {total}, the slots of all nodes"
