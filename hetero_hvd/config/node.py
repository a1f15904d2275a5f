"""The settings of one node, each declared once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hetero_hvd.config.launchers import AGENT_PORT, CONNECTION_KEYS, KINDS, LauncherKind, kind_at
from hetero_hvd.config.setting import check, displayed, setting
from hetero_hvd.config.value_types import (
    DEVICE,
    ENVIRONMENT,
    HOST,
    INTERFACE,
    LOGIN,
    NAME,
    PATH,
    SLOT,
    SRUN_OPTIONS,
    SSH_OPTIONS,
    ListOf,
    Section,
    boolean,
    byte_size,
    choice,
    integer,
    number,
)
from hetero_hvd.core.simulation.jitter import DEFAULT_SPIKE_RATIO
from hetero_hvd.errors import ConfigError

_DERIVED = ""  # replaced in __post_init__
NO_HOME = "python: found a path from ~, but this user has no home; give a whole path"


@dataclass(frozen=True, kw_only=True)
class EmulateConfig:
    """Slows a node's compute inside what is timed, so that one machine can act as a mixed cluster.

    Exactly one of `relative_speed` and `seconds_per_sample` is given.
    """

    relative_speed: float | None = setting(
        number(above=0, maximum=1),
        "stretch the measured compute by 1 / this; with as many free cores as workers",
        default=None,
        default_text="not used",
    )
    seconds_per_sample: float | None = setting(
        number(above=0),
        "hold the compute of x samples to overhead_seconds + x times this, in seconds; "
        "stays true with fewer cores than workers",
        default=None,
        default_text="not used",
    )
    overhead_seconds: float = setting(
        number(minimum=0), "constant part of each step's compute, in seconds", default=0.0
    )
    noise_ratio: float = setting(
        number(minimum=0, maximum=2),
        "coefficient of variation of log-normal noise on each step's compute",
        default=0.0,
    )
    spike_probability: float = setting(
        number(minimum=0, maximum=1),
        "of a step's compute to take spike_ratio times as long",
        default=0.0,
    )
    spike_ratio: float | None = setting(
        number(minimum=1, maximum=1000),
        "time of a spike as a multiple of what it would be",
        default=None,
        default_text=f"{DEFAULT_SPIKE_RATIO:g}",
    )
    noise_seed: int = setting(
        integer(0),
        "of noise and spikes; each worker draws its own, the same in every run",
        default=0,
    )

    def __post_init__(self) -> None:
        """Check."""
        check(self, self._relations())

    def _relations(self) -> Iterator[tuple[str, str]]:
        if (self.relative_speed is None) == (self.seconds_per_sample is None):
            yield "", "must hold exactly one of 'relative_speed' and 'seconds_per_sample'"
        elif self.relative_speed is not None and self.overhead_seconds:
            yield "overhead_seconds", "needs 'seconds_per_sample'; it has no effect otherwise"
        if self.spike_ratio is not None and not self.spike_probability:
            yield "spike_ratio", "needs 'spike_probability'; it has no effect otherwise"
        if self.noise_seed and not (self.noise_ratio or self.spike_probability):
            yield (
                "noise_seed",
                "needs 'noise_ratio' or 'spike_probability'; it has no effect otherwise",
            )


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """One machine, or one emulated part of a machine."""

    name: str = setting(NAME, "identity in logs, metrics and plans; unique")
    address: str = setting(
        HOST,
        "where the others reach it",
        default="",
        default_text="127.0.0.1 if launcher is local or not given, else the name",
    )
    slots: int | None = setting(
        integer(1, 1024),
        "worker processes",
        default=None,
        default_text="one per device, else one per GPU, else 1",
    )
    launcher: str = setting(
        choice(*KINDS),
        "how its workers are started",
        default=_DERIVED,
        default_text="local if address is localhost or a loopback address, else ssh",
    )
    user: str | None = setting(LOGIN, "login for ssh", default=None, default_text="ssh decides")
    port: int | None = setting(
        integer(1, 65535),
        "port of sshd or of the agent",
        default=None,
        default_text=f"ssh decides; {AGENT_PORT} for an agent",
    )
    identity_file: str | None = setting(
        PATH,
        "private key for ssh, or cluster key for an agent; a path here",
        default=None,
        default_text="ssh decides; job.cluster_key_file for an agent",
    )
    tls_file: str | None = setting(
        PATH,
        "TLS file with which its agent is reached; a path here",
        default=None,
        default_text="job.tls_file",
    )
    ssh_options: dict[str, str] = setting(
        SSH_OPTIONS, "further options, each passed as -o", default_factory=dict
    )
    srun_options: dict[str, str] = setting(
        SRUN_OPTIONS,
        "further options of srun, each passed as --NAME=VALUE, where the driver runs inside a "
        "Slurm job; see docs/guide/slurm.md",
        default_factory=dict,
    )
    interface: str | None = setting(
        INTERFACE,
        "network interface for Gloo and NCCL",
        default=None,
        default_text="the one that reaches the driver",
    )
    python: str | None = setting(
        PATH,
        "interpreter on the node; a path from the home of who logs in there, or a whole one",
        default=None,
        default_text="over ssh that of `hetero-hvd install`, if there; else the driver's own",
    )
    directory: str | None = setting(
        PATH, "working directory on the node", default=None, default_text="the driver's own"
    )
    env: dict[str, str] = setting(
        ENVIRONMENT,
        "further environment of its workers; values are never shown",
        default_factory=dict,
    )
    devices: tuple[int | str, ...] | None = setting(
        ListOf(DEVICE, "a list of devices such as [0, 1]; [] is the CPU"),
        "GPUs, one per slot, as CUDA, ROCm or oneAPI number them",
        default=None,
        default_text="GPU i for slot i",
    )
    lease: str | None = setting(
        SLOT,
        "what its one CPU slot is called among all jobs of its machine, one of which has it; a "
        "GPU is called by its UUID",
        default=None,
        default_text="the node's name and the slot's number",
    )
    pool: str = setting(
        NAME,
        "who owns its devices, where a hub's queue gives them to jobs; see docs/guide/queue.md",
        default="default",
    )
    device_kind: str | None = setting(
        NAME,
        "model of its devices, for the queue: those of one kind are equally fast",
        default=None,
        default_text="the node's name",
    )
    relative_speed: float | None = setting(
        number(above=0, maximum=1),
        "hint for the first plan, 1 is the fastest; measurements replace it",
        default=None,
        default_text="all equal",
    )
    price_per_hour: float | None = setting(
        number(minimum=0),
        "of the whole node, in any currency: what `hetero-hvd cost` and the summary count with",
        default=None,
        default_text="not known",
    )
    guest: bool = setting(
        boolean(),
        "whether jobs are guests there: when its owner uses the node they leave it within seconds, "
        "and come back later; see docs/guide/queue.md",
        default=False,
    )
    guest_idle_seconds: float = setting(
        number(minimum=0, maximum=86400),
        "of a guest's node: for so long its owner must not be seen until they come back",
        default=60.0,
    )
    guest_processors: float = setting(
        number(above=0, maximum=100_000),
        "of a guest's node without GPUs: processors; if others use more, its owner is there, and "
        "is until they use less than 0.6 of it",
        default=0.5,
    )
    guest_file: str = setting(
        PATH,
        "of a guest's node: as long as this file is there, on the node, so is its owner",
        default="/run/lock/hetero_hvd-owner",
    )
    memory_limit_bytes: int | None = setting(
        byte_size(2**20, "1MiB"),
        "most memory of one worker's device",
        default=None,
        default_text="no limit",
    )
    max_local_batch_size: int | None = setting(
        integer(1),
        "largest share of one worker, samples; what the workers that are left after a loss "
        "cannot hold at a time they take in several passes",
        default=None,
        default_text="no limit",
    )
    emulate: EmulateConfig | None = setting(
        Section(EmulateConfig), "act as a slower machine", default=None, default_text="off"
    )

    def __post_init__(self) -> None:
        """Fill in what depends on other settings, then check."""
        given = KINDS.get(self.launcher)
        is_elsewhere = given is not None and not given.is_local
        address = self.address or (self.name if is_elsewhere else "127.0.0.1")
        object.__setattr__(self, "address", address)
        if self.launcher == _DERIVED:
            object.__setattr__(self, "launcher", kind_at(address).name)
        if isinstance(self.python, str) and self.python.startswith("~/"):
            kind = KINDS.get(self.launcher)
            is_here = kind is not None and kind.is_local
            home = f"{_home()}/" if is_here else ""  # ssh starts in the node's
            object.__setattr__(self, "python", home + self.python[2:])
        check(self, self._relations())

    def _relations(self) -> Iterator[tuple[str, str]]:
        for key in CONNECTION_KEYS:
            value, why_not = getattr(self, key), self.kind.why_not(key, self.address)
            if value and why_not:
                yield key, f"found {displayed(value)}, but {why_not}"
        if self.slots is not None and self.devices and self.slots != len(self.devices):
            yield (
                "devices",
                f"found {len(self.devices)} devices for {self.slots} slots, must be equal",
            )
        for key in ("guest_idle_seconds", "guest_processors", "guest_file"):
            if (
                not self.guest
                and getattr(self, key) != type(self).__dataclass_fields__[key].default
            ):
                yield key, "needs 'guest: true'; it has no effect otherwise"
        if self.lease and self.declared_slots != 1:
            yield "lease", f"found {self.lease!r}, needs 'slots: 1'"

    @property
    def kind(self) -> LauncherKind:
        """How its workers are started."""
        return KINDS[self.launcher]

    @property
    def is_local(self) -> bool:
        """Whether it is the driver's own machine."""
        return self.kind.is_local

    @property
    def declared_slots(self) -> int | None:
        """Worker processes as far as the file says; None if the node's GPUs decide."""
        if self.slots is not None or self.devices is None:
            return self.slots
        return len(self.devices) or 1

    def resolved_slots(self, num_gpus: int) -> int:
        """Worker processes on this node, >= 1, given how many GPUs it has."""
        return self.declared_slots or max(num_gpus, 1)


def _home() -> Path:
    """The driver's own.

    Raises:
        ConfigError: It has none.
    """
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError([NO_HOME]) from error
