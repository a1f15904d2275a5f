"""What the driver tells a worker at its start: one record, in one environment variable, as JSON.

`worker.session.launch_settings` reads it, and builds the same record where there is no driver. The
worker's certificate is no part of it: it has a variable of its own, which is removed when read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from hetero_hvd.errors import JobError
from hetero_hvd.messages.identity import WorkerId

LAUNCH_VARIABLE = "HETERO_HVD_LAUNCH"
WORKER_VARIABLE = "HETERO_HVD_WORKER"
"""The worker's name once more, for the script's own use."""

TLS_VARIABLE = "HETERO_HVD_TLS"

ModeName = Literal["synchronous", "reproducible", "wait_free"]
"""Each is a class of `worker.training_modes.MODES`."""

SYNCHRONOUS: ModeName = "synchronous"
MODE_NAMES: tuple[ModeName, ...] = get_args(ModeName)

SWITCHES: tuple[ModeName, ...] = ("reproducible", "wait_free")
"""Modes that can be asked for by a setting or an option of their name as well as by `mode`."""

CpuCapability = Literal["auto", "default", "avx2", "avx512", "native"]
CPU_CAPABILITIES: tuple[CpuCapability, ...] = get_args(CpuCapability)

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Bound = Annotated[int, Meta(ge=0, le=8)]
Seconds = Annotated[float, Meta(ge=0)]


class LaunchPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the record and of its parts."""


class WorkerIdentity(LaunchPart, frozen=True):
    """Who the worker is.

    Attributes:
        worker: Its name, which it keeps for its life.
        host: What Horovod calls the host that stands for this slot.
        driver: Address and port of our driver's channel; None under `horovodrun` or alone.
        run: Name of the run's folder, for those who ask whose process this is; "": there is none.
    """

    worker: WorkerId = WorkerId("localhost", 0)
    host: str = "localhost"
    driver: tuple[str, Port] | None = None
    run: str = ""


EMULATED = ", emulated: "
"""Between a device's model and the words of `EmulateSettings`."""


class EmulateSettings(LaunchPart, frozen=True):
    """How the worker is slowed down; each is described at `config.node.EmulateConfig`.

    Attributes:
        relative_speed: Speed as a part of the machine's own, > 0, <= 1; None: not by this.
        seconds_per_sample: Seconds that a sample takes, > 0; None: not by this.
        overhead_seconds: Seconds that each step takes beside its samples, >= 0.
        noise_ratio: Coefficient of variation of a step's compute, 0 to 2.
        spike_probability: Part of the steps that have a spike, 0 to 1.
        spike_ratio: Time of a spike as a multiple of what it would be, >= 1; None: the default.
        noise_seed: Seed of noise and spikes, >= 0.
    """

    relative_speed: float | None = None
    seconds_per_sample: float | None = None
    overhead_seconds: Seconds = 0.0
    noise_ratio: float = 0.0
    spike_probability: float = 0.0
    spike_ratio: float | None = None
    noise_seed: Count = 0

    @property
    def words(self) -> str:
        """All that its speed depends on, by name and value."""
        asked = {name: getattr(self, name) for name in self.__struct_fields__}
        del asked["noise_seed"]
        return ", ".join(f"{name} {value:g}" for name, value in asked.items() if value)


class NodeSettings(LaunchPart, frozen=True):
    """The keys of the worker's node in nodes.yaml that the worker itself needs, by the same names.

    Attributes:
        emulate: How it acts as a slower machine; None: it does not.
        interface: Network interface for Gloo and NCCL; None: the one that reaches the driver.
        max_local_batch_size: Largest share of one worker, samples, >= 1; None: not limited.
        memory_limit_bytes: Most memory of one worker's device, bytes, >= 1; None: not limited.
    """

    emulate: EmulateSettings | None = None
    interface: str | None = None
    max_local_batch_size: Positive | None = None
    memory_limit_bytes: Positive | None = None


class JobSettings(LaunchPart, frozen=True):
    """The settings of the job that a worker follows, by the same names and with the same defaults.

    Without a driver a user may set each by its environment variable.

    Attributes:
        mode: How to train, if the script leaves it open.
        grain: Samples of one forward and backward in the reproducible mode, >= 1, if the script
            leaves it open.
        cpu_capability: Vector instructions of the reproducible mode on CPUs; see
            `core.numerics.cpu_capability`.
        fingerprint_steps: Steps between two fingerprints, >= 0; 0: after each epoch only.
        staleness_bound: Steps that may be under way, 0 to 8, if the script leaves it open.
        staleness_warmup_steps: First steps without staleness, >= 0, if the script leaves it open.
        hang_timeout_seconds: Shortest time, > 0, after which a worker that hangs in its own part of
            a step ends itself; without a driver nothing does.
        elastic_timeout_seconds: How long to wait, > 0, for others where the workers that are left
            cannot go on.
        log_format: Whether the package's log is `text` or a JSON record a line.
        nvtx: Whether the phases of a step are NVTX ranges.
    """

    mode: ModeName = SYNCHRONOUS
    grain: Positive = 16
    cpu_capability: CpuCapability = "auto"
    fingerprint_steps: Count = 0
    staleness_bound: Bound = 0
    staleness_warmup_steps: Count = 100
    hang_timeout_seconds: Seconds = 30.0
    elastic_timeout_seconds: Seconds = 600.0
    log_format: Literal["text", "json"] = "text"
    nvtx: bool = False


class CheckpointSettings(LaunchPart, frozen=True):
    """Where, when and how many checkpoints are kept.

    Attributes:
        folder: Where to: a path, or a URL.
        run: Name of this run of the job: older runs' checkpoints in the same place are not taken.
        every_seconds: Seconds between two checkpoints, >= 0; 0: only those of the best, and when
            leaving.
        keep: Number of the newest ones that are kept.
        best: Metric of `Trainer.evaluate` whose best checkpoint is kept too, `-` in front if less
            is better; "" for none.
        resume: Where the checkpoints of an earlier run are, to go on from; "" for none.
        resume_runs: Names of that run's starts there; empty: whatever is there is meant.
        cpu_capability: The instruction set that the state is computed with, which may not change
            on the way; "" where that does not matter.
        job: Name of the job, which all its starts have in common.
        goes_on: Whether this is another start of the job, or its first one: it goes on with the run
            of the newest start that has kept anything, else with `run`.
    """

    folder: str
    run: str
    every_seconds: Seconds = 60.0
    keep: Count = 2
    best: str = ""
    resume: str = ""
    resume_runs: tuple[str, ...] = ()
    cpu_capability: str = ""
    job: str = ""
    goes_on: bool = False


class TraceSettings(LaunchPart, frozen=True):
    """Where traces go, and the window that the job wants from the start.

    Attributes:
        folder: For the files.
        from_step: First step of the window; -1: there is none.
        to_step: The step after its last.
        workers: Names of those who record it; empty: all.
        timeline: Whether with Horovod's timeline, too.
    """

    folder: str
    from_step: int = -1
    to_step: int = -1
    workers: tuple[str, ...] = ()
    timeline: bool = False


class BenchmarkSettings(LaunchPart, frozen=True):
    """That this process does not train but measures.

    Attributes:
        seconds: What all of it may take, > 0.
        is_fresh: Whether to measure again what was measured before.
    """

    seconds: Seconds
    is_fresh: bool = False


class TriedOptions(LaunchPart, frozen=True):
    """Options of the trainer that a trial sets, whatever the script says; the default: none.

    Attributes:
        compression: As the trainer's; None: as the script says.
        staleness_bound: As the trainer's, from the first step on; None: as the script says.
        num_batches: Times as many of the script's batches make one step, >= 1.
        in_pieces: Whether these go through the model one after the other (accumulation), and not
            as one larger batch.
    """

    compression: Literal["none", "fp16", "fp16-feedback"] | None = None
    staleness_bound: Bound | None = None
    num_batches: Positive = 1
    in_pieces: bool = False


class WorkerLaunch(LaunchPart, frozen=True):
    """All that a worker is told at its start; the defaults are those of a script that runs alone.

    Attributes:
        identity: Who the worker is.
        node: What nodes.yaml says about its node.
        job: What the job decides where the script leaves it open.
        checkpoints: What is kept of the training state; None: nothing.
        traces: Where traces go; None: there are none.
        fingerprints: File to which rank 0 appends fingerprints; "" for none.
        check_steps: Steps between two comparisons of the replicas, >= 0; 0: there are none.
        max_micro_batch: Samples of the largest micro-batch, >= 0, since the kernel has killed a
            worker of this slot for want of memory; 0: not limited, as it has not.
        benchmark: What is measured instead of training; None: it trains.
        tried: What a trial sets of the trainer's options.
    """

    identity: WorkerIdentity = WorkerIdentity()
    node: NodeSettings = NodeSettings()
    job: JobSettings = JobSettings()
    checkpoints: CheckpointSettings | None = None
    traces: TraceSettings | None = None
    fingerprints: str = ""
    check_steps: Count = 1000
    max_micro_batch: Count = 0
    benchmark: BenchmarkSettings | None = None
    tried: TriedOptions = TriedOptions()


def launch_to_text(launch: WorkerLaunch) -> str:
    """What the variable holds."""
    return msgspec.json.encode(launch).decode()


def launch_from_text(text: str) -> WorkerLaunch:
    """Read what `launch_to_text` wrote, or what was written by hand.

    Raises:
        JobError: It is no such record; says which part.
    """
    try:
        return msgspec.json.decode(text, type=WorkerLaunch)
    except msgspec.DecodeError as error:
        raise JobError(f"{LAUNCH_VARIABLE}: {error}") from error


def asked_mode(
    mode: ModeName | None,
    switches: Mapping[ModeName, bool | None],
    otherwise: ModeName = SYNCHRONOUS,
) -> ModeName:
    """The mode to train in.

    Args:
        mode: The one that is asked for by `mode`; None: none is.
        switches: What the switches of `SWITCHES` say; None: nothing.
        otherwise: The mode if none is asked for and its own switch is not off.

    Raises:
        ValueError: Two modes are asked for; says what must be left out.
    """
    asked = [name for name, is_on in switches.items() if is_on and name != mode]
    if mode is not None:
        asked.insert(0, mode)
        if switches.get(mode) is False:
            raise ValueError(f"{mode}: must not be off where mode is {mode}")
    if len(asked) > 1:
        raise ValueError(f"{asked[1]}: must be off in the {asked[0]} mode")
    if asked:
        return asked[0]
    return SYNCHRONOUS if switches.get(otherwise) is False else otherwise
