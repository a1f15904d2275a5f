"""What a script may ask of the trainer beside model, optimizer and data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Literal, TypedDict, get_args

import torch
from torch.nn import Parameter

from hetero_hvd.errors import UserError
from hetero_hvd.messages.launch import (
    MODE_NAMES,
    SWITCHES,
    SYNCHRONOUS,
    JobSettings,
    ModeName,
    TriedOptions,
    asked_mode,
)

Compression = Literal["none", "fp16", "fp16-feedback"]
"""Not bfloat16: Horovod 0.28.1 cannot sum it."""

LearningRateRule = Literal["auto", "linear", "sqrt", "none"]

CHOICES: dict[str, tuple[object, ...]] = {
    "mode": (None, *MODE_NAMES),
    "compression": get_args(Compression),
    "wait_free_lr": get_args(LearningRateRule),
    "sum_bits": (64, 32),
    "shard_optimizer": (True, False, "auto"),
    "equal_micro_batches": (True, False),
    "lookahead": (True, False),
    "reproducible": (None, True, False),
    "wait_free": (None, True, False),
}
"""Options that have one of a few values; None is left to the job."""

DEFAULT_BUCKET_BYTES = 25 * 2**20
"""As in PyTorch's DistributedDataParallel: large buckets amortise latency."""

MAX_STALENESS_BOUND = 8
"""Beyond it gradients are too old for any learning rate that is worth using."""

OTHER_ARGUMENTS = ("scheduler", "scheduler_interval", "extra_state", "after_step", "seed")
"""Of the trainer, beside the options."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a step is taken.

    Attributes:
        scaler: For float16 autocast; unscaled after the reduction, so that all workers decide
            alike. One that is disabled counts as None.
        clip: Called with the parameters after the reduction and before the optimizer, for example
            `lambda parameters: clip_grad_norm_(parameters, 1.0)`.
        micro_batch_size: Samples in one forward and backward at most, > 0; `auto`: as many as pay,
            each worker for itself; None = the whole share, or with `accumulation_steps` the
            loader's batch size. Fewer wherever the memory does not hold them.
        equal_micro_batches: Exactly `micro_batch_size` samples in every forward pass on every
            worker, but for the rest of an epoch; shares are multiples of it.
        accumulation_steps: Batches of the loader in one optimizer step, >= 1.
        bucket_bytes: Size at which a gradient bucket is closed, > 0.
        compression: `none`, `fp16` or `fp16-feedback`; see `Reducer`.
        mode: How to train: `synchronous`, `reproducible` or `wait_free`; None: as the job is
            started.
        reproducible: The same bits on any cluster, see docs/guide/reproducibility.md; None: as
            `mode` says.
        grain: Samples of one forward and backward in the reproducible mode, > 0; None: the job's.
        sum_bits: Width of its sums, 64 or 32.
        staleness_bound: Steps that may be under way while the next is computed, 0 to 8, see
            docs/guide/staleness.md; None: as the job is started.
        lookahead: With a staleness bound, compute each gradient where the parameters will be when
            it is applied, guessed with this worker's own gradients; see `worker.step.lookahead`.
        staleness_warmup_steps: Steps with bound 0 first, >= 0; None: the job's.
        wait_free: Each worker computes chunks of `micro_batch_size` samples (None: a sixteenth of
            the global batch) until the step before is reduced: docs/guide/staleness.md; None: as
            `mode` says.
        shard_optimizer: The optimizer's state lies in parts on the workers, by the memory that each
            has left, each part on two; `auto`: only if it does not fit whole on every worker:
            docs/guide/large-models.md.
        wait_free_lr: How the learning rate grows with the samples of such a step: `linear`, `sqrt`,
            `none`; `auto`: `sqrt` for Adam and its kind, else `linear`.
    """

    scaler: torch.amp.GradScaler | None = None
    clip: Callable[[list[Parameter]], object] | None = None
    micro_batch_size: int | Literal["auto"] | None = None
    equal_micro_batches: bool = False
    accumulation_steps: int = 1
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    compression: Compression = "none"
    mode: ModeName | None = None
    reproducible: bool | None = None
    grain: int | None = None
    sum_bits: int = 64
    staleness_bound: int | None = None
    staleness_warmup_steps: int | None = None
    lookahead: bool = True
    wait_free: bool | None = None
    wait_free_lr: LearningRateRule = "auto"
    shard_optimizer: bool | Literal["auto"] = False

    @property
    def undivided(self) -> int:
        """Samples that are never split between workers, >= 1."""
        return int(self.micro_batch_size or 1) if self.equal_micro_batches else 1

    def __post_init__(self) -> None:
        """Check the ranges."""
        if isinstance(self.scaler, torch.amp.GradScaler) and not self.scaler.is_enabled():
            object.__setattr__(self, "scaler", None)
        for name in ("micro_batch_size", "accumulation_steps", "bucket_bytes", "grain"):
            value = getattr(self, name)
            if name == "micro_batch_size" and value == "auto":
                continue
            if value is not None and (type(value) is not int or value < 1):
                auto = ' or "auto"' if name == "micro_batch_size" else ""
                raise UserError(f"{name}={value!r}: must be a whole number >= 1{auto}")
        if self.equal_micro_batches and not isinstance(self.micro_batch_size, int):
            raise UserError("equal_micro_batches: say how large with micro_batch_size")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            is_number = type(value) in (int, float) and True in allowed  # 1 == True
            if is_number or value not in allowed:
                *first, last = (str(each) for each in allowed if each is not None)
                raise UserError(f"{name}={value!r}: must be {', '.join(first)} or {last}")
        bound, warmup = self.staleness_bound, self.staleness_warmup_steps
        is_whole = type(bound) is int and 0 <= bound <= MAX_STALENESS_BOUND
        if bound is not None and not is_whole:
            wanted = f"a whole number from 0 to {MAX_STALENESS_BOUND}"
            raise UserError(f"staleness_bound={bound!r}: must be {wanted}")
        if warmup is not None and (type(warmup) is not int or warmup < 0):
            raise UserError(f"staleness_warmup_steps={warmup!r}: must be a whole number >= 0")


class TrainerOptions(TypedDict, total=False):
    """The fields of `StepOptions` as keyword arguments, for editors and type checkers."""

    scaler: torch.amp.GradScaler | None
    clip: Callable[[list[Parameter]], object] | None
    micro_batch_size: int | Literal["auto"] | None
    equal_micro_batches: bool
    accumulation_steps: int
    bucket_bytes: int
    compression: Compression
    mode: ModeName | None
    reproducible: bool | None
    grain: int | None
    sum_bits: int
    staleness_bound: int | None
    staleness_warmup_steps: int | None
    lookahead: bool
    wait_free: bool | None
    wait_free_lr: LearningRateRule
    shard_optimizer: bool | Literal["auto"]


def with_tried(
    given: TrainerOptions, tried: TriedOptions, loader_batch_size: int
) -> TrainerOptions:
    """The options that a script gives, with those that a trial sets in their place.

    Args:
        given: What the script says.
        tried: What the trial says.
        loader_batch_size: Of the script's loader.
    """
    options: TrainerOptions = {**given}
    if tried.compression is not None:
        options["compression"] = tried.compression
    if tried.staleness_bound is not None:
        options |= {"staleness_bound": tried.staleness_bound, "staleness_warmup_steps": 0}
    if tried.num_batches > 1:
        accumulation_steps = given.get("accumulation_steps", 1) * tried.num_batches
        options["accumulation_steps"] = accumulation_steps
        if not tried.in_pieces and not given.get("micro_batch_size"):
            options["micro_batch_size"] = loader_batch_size * accumulation_steps
    return options


def step_options(given: TrainerOptions, job: JobSettings, *, loader_batch_size: int) -> StepOptions:
    """The options that a script gives; micro-batches bound the memory where batches accumulate.

    Args:
        given: What the script says.
        job: Decides what the script leaves open.
        loader_batch_size: Of the script's loader.

    Raises:
        UserError: There is no such option, or its value cannot be.
    """
    _refuse_unknown(given)
    own = StepOptions(**given)
    known = [name for name in JobSettings.__struct_fields__ if hasattr(own, name)]
    open_ones = {name: getattr(job, name) for name in known if getattr(own, name) is None}
    switches: dict[ModeName, bool | None] = {name: getattr(own, name) for name in SWITCHES}
    try:
        mode = asked_mode(own.mode, switches, job.mode)
    except ValueError as error:
        raise UserError(f"Trainer: {error}") from error
    options = replace(own, **open_ones | {"mode": mode})
    check_functions(options)
    if own.grain is not None and mode != "reproducible":
        raise UserError(f"grain={own.grain}: only with reproducible=True")
    if options.shard_optimizer:
        _check_shards(options, mode)
    if options.accumulation_steps > 1 and not options.micro_batch_size and mode == SYNCHRONOUS:
        options = replace(options, micro_batch_size=loader_batch_size)
    global_batch_size = loader_batch_size * options.accumulation_steps
    if options.equal_micro_batches and global_batch_size % options.undivided:
        raise UserError(
            f"equal_micro_batches: the global batch of {global_batch_size} samples must be a "
            f"multiple of micro_batch_size={options.micro_batch_size}"
        )
    return options


def _check_shards(options: StepOptions, mode: ModeName) -> None:
    """Refuse what a state in parts was not proven with.

    Raises:
        UserError: Names it.
    """
    others = {
        f"mode {mode}": mode not in (SYNCHRONOUS, "reproducible"),
        f"staleness_bound={options.staleness_bound}": options.staleness_bound,
    }
    for what, is_there in others.items():
        if is_there:
            raise UserError(
                f"shard_optimizer: not with {what}: only the synchronous and the reproducible mode "
                "without staleness are proven; leave out one of the two"
            )


def check_functions(options: StepOptions) -> None:
    """Refuse a clip that cannot be called, and a scaler that is none.

    Raises:
        UserError: One of them is something else.
    """
    if options.clip is not None and not callable(options.clip):
        raise UserError(
            f"clip={options.clip!r}: must be a function of the parameters, such as "
            "lambda parameters: clip_grad_norm_(parameters, 1.0)"
        )
    if options.scaler is not None and not isinstance(options.scaler, torch.amp.GradScaler):
        raise UserError(f"scaler={options.scaler!r}: must be a torch.amp.GradScaler")


def _refuse_unknown(given: Iterable[str]) -> None:
    known = [*OTHER_ARGUMENTS, *(field.name for field in fields(StepOptions))]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"Trainer has no option {name}: {advice}")
