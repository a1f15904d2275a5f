"""What the workers of a new rendezvous tell each other: who they are, how far they have come."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import torch

from hetero_hvd.core.data.file_sets import differing
from hetero_hvd.data.listing import opened_files
from hetero_hvd.errors import JobError
from hetero_hvd.messages import FileSet, WorkerId
from hetero_hvd.messages.identity import RunIdentity
from hetero_hvd.messages.launch import NodeSettings
from hetero_hvd.worker.accelerator import is_accelerator, name_of
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Order
from hetero_hvd.worker.micro_batch.memory_meter import device_memory_bytes
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.session.self_description import describe_device
from hetero_hvd.worker.shards.members import HeldShards, ShardMember
from hetero_hvd.worker.step.training_step import KeptParts

FRESH = -1
"""Applied steps of a worker that has no state worth keeping."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, on what device and data.

    Attributes:
        model: Class, and a digest of all parameters' names, shapes and types and of the precision.
        device: Its model, and how it is slowed down to act as another one.
        arithmetic: What its rounding depends on: GPUs of one model, or CPUs of one instruction set,
            apply an update bit for bit alike.
        memory_bytes: Of a GPU; 0 on a CPU, where it says nothing about the speed.
        undivided: Samples that are never split between workers, >= 1.
        shares_vary: Whether a worker takes in a step what it gets done, whatever the plan says.
        shares_fixed: Whether the script divides its data itself, whatever the plan says.
        can_calibrate: Whether this worker can measure itself before its next step.
        data: The sets of files that the script had opened when it made its trainer.
    """

    model: str = ""
    device: str = ""
    arithmetic: str = ""
    memory_bytes: float = 0.0
    undivided: int = 1
    shares_vary: bool = msgspec.field(default=False, name="wait_free")
    shares_fixed: bool = False
    can_calibrate: bool = False
    data: tuple[FileSet, ...] = ()


def describe_workload(
    model: torch.nn.Module,
    options: StepOptions,
    device: torch.device,
    node: NodeSettings,
    *,
    grain: int | None,
    shares_vary: bool,
    can_calibrate: bool,
) -> Workload:
    """Describe what a trainer was given; gradients are scaled for float16 only."""
    parts = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in model.named_parameters()]
    parts.append(str(options.scaler is not None))
    digest = sha256("\n".join(parts).encode()).hexdigest()
    return Workload(
        model=f"{type(model).__name__} {digest[:16]}",
        device=describe_device(device, node.emulate),
        arithmetic=name_of(device) if is_accelerator(device) else platform.machine(),
        memory_bytes=device_memory_bytes(device),
        undivided=grain or options.undivided,
        shares_vary=shares_vary,
        can_calibrate=can_calibrate,
        data=opened_files(),
    )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What each worker tells the others when it enters a rendezvous.

    Attributes:
        worker: Who it is.
        applied_steps: Steps applied, or `FRESH`.
        epoch: Epoch that it is in.
        num_evaluations: Evaluations done since the last applied step.
        checksum: Digest of its replica.
        rendezvous_id: The last rendezvous that it was in; 0 for none.
        global_batch_size: From its script.
        capacity: Its largest local batch, samples; -1 = not limited.
        prefetch_steps: Steps that it may load ahead.
        staleness_bound: Steps that it may have under way after a step.
        numerics: What its bits depend on, `; ` between two facts; empty if that does not matter.
        mode: Name of its training mode.
        micro_batch_size: Samples in one of its forward passes at most; 0 = not limited.
        work: What it trains, and on what.
        is_new: Whether its script has not begun its loop yet, whatever it has from a checkpoint.
        has_looked: Whether it has looked for a checkpoint to begin with.
        agreed: Checksum of its replica when all were last known to be equal, if no step was applied
            since then; else empty.
        order: What decides which samples a step consumes.
        parts: Names of what its replica holds.
        run: The run that it was in; of one that was in none, what it would call it.
        steps_on_batch: Steps applied on the batch under way; see `Position`.
        is_applying: Whether it is in the midst of the application of a step, the last applied one.
        num_heard: See `StepApplication`.
        shards: What it holds of the optimizer's state; None: all of it, as all others.
        kept: Where its parts of steps belong that broke; None: it has none that are of use.
    """

    worker: WorkerId
    applied_steps: int
    epoch: int
    num_evaluations: int
    checksum: str
    rendezvous_id: int
    global_batch_size: int
    capacity: int
    prefetch_steps: int
    staleness_bound: int = 0
    numerics: str = ""
    mode: str = ""
    micro_batch_size: int = 0
    work: Workload = Workload()
    is_new: bool = False
    has_looked: bool = True
    agreed: str = ""
    order: Order = Order()
    parts: tuple[str, ...] = ()
    run: RunIdentity = RunIdentity()
    steps_on_batch: int = 0
    is_applying: bool = False
    num_heard: int = 0
    shards: HeldShards | None = None
    kept: KeptParts | None = None


def exchange_reports(collective: Collective, report: Report) -> list[Report]:
    """What all members of a new rendezvous report, in rank order.

    Raises:
        Interrupted: The rendezvous broke.
        JobError: The workers run different scripts, or have different data.
    """
    payloads = gather_bytes(collective, msgspec.msgpack.encode(report), "reports")
    reports = [msgspec.msgpack.decode(payload, type=Report) for payload in payloads]
    apart = differing({report.worker: report.work.data for report in reports})
    if apart:
        raise JobError("; ".join(f"{worker}: {words}" for worker, words in apart.items()))
    _check_scalers(reports)
    known = [(other.worker, _facts(other)) for other in reports]
    for name in known[0][1]:
        found: dict[object, WorkerId] = {facts[name]: worker for worker, facts in known}
        if len(found) > 1:
            told = ", ".join(f"{worker}: {fact}" for fact, worker in found.items())
            raise JobError(f"the workers' scripts differ: {name}: {told}")
    for other in reports[1:]:
        if other.numerics != reports[0].numerics:
            raise JobError(_unequal(reports[0], other))
    return reports


def _check_scalers(reports: Sequence[Report]) -> None:
    """Losses are scaled by all workers or by none: else gradients of unlike sizes were added up.

    Raises:
        JobError: Only some of them scale theirs; says what to do.
    """
    scaled = {report.worker: "scaler" in report.parts for report in reports}
    if len(set(scaled.values())) > 1:
        without = ", ".join(str(worker) for worker, has_scaler in scaled.items() if not has_scaler)
        others = ", ".join(str(worker) for worker, has_scaler in scaled.items() if has_scaler)
        raise JobError(
            f"float16: {without} has no scaler for its losses, {others} has one: in Lightning's "
            "precision='16-mixed' a CPU has none: say precision='bf16-mixed'; elsewhere give each "
            "worker scaler=torch.amp.GradScaler(hetero_hvd.device().type)"
        )


def _facts(report: Report) -> dict[str, object]:
    """What must be the same on all workers, in words."""
    bound = f"{report.staleness_bound}" + f", {report.mode}" * report.work.shares_vary
    return {
        **report.order.facts,
        "staleness bound": bound,
        "parts of the state": ", ".join(report.parts),
        "shard_optimizer": report.shards is not None,
    }


def _unequal(one: Report, other: Report) -> str:
    first, second = one.numerics.split("; "), other.numerics.split("; ")
    mine = ", ".join(fact for fact in first if fact not in second)
    theirs = ", ".join(fact for fact in second if fact not in first)
    return (
        f"reproducible: {one.worker} has {mine or 'not this mode'}, {other.worker} has "
        f"{theirs or 'not this mode'}: their results would differ; all workers need the same"
    )


def next_rendezvous_id(reports: list[Report]) -> int:
    """Of the rendezvous in which these were exchanged; no member has seen it before."""
    return 1 + max(report.rendezvous_id for report in reports)


def run_of(reports: list[Report]) -> RunIdentity:
    """Which run goes on: that of the newest rendezvous; at the start, the one of rank 0."""
    return max(reports, key=lambda report: report.rendezvous_id).run


def are_to_look(reports: Sequence[Report]) -> bool:
    """Whether those who have not done so look for a checkpoint, and all report again.

    Not where somebody trains already: its state is newer than any that was kept, and it would wait.
    """
    is_start = all(report.is_new for report in reports)
    return is_start and not all(report.has_looked for report in reports)


def members_of(reports: Sequence[Report]) -> list[ShardMember]:
    """What the parts of the optimizer's state depend on, in rank order."""
    found = [(report, report.shards or HeldShards()) for report in reports]
    return [
        ShardMember(r.applied_steps, r.is_applying and held.is_torn, held, str(r.worker))
        for r, held in found
    ]
