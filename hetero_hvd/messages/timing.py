"""What a worker measures of its steps."""

from __future__ import annotations

import math
from operator import attrgetter

import msgspec

from hetero_hvd.messages.phases import OWN_PHASES

_own_seconds = attrgetter(*(f"{phase}_seconds" for phase in OWN_PHASES))


class PassTiming(msgspec.Struct, frozen=True):
    """Forward and backward pass over a few samples.

    Attributes:
        num_samples: > 0.
        seconds: > 0.
    """

    num_samples: int
    seconds: float


class StepTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Where one worker's time went, mean over `num_steps` steps at one local batch size.

    NaN means not measured. Those that end in `_seconds` or `_steps` are means over the steps; of a
    phase that is the worker's own time the default is 0, as it is a part of sums.

    Attributes:
        num_steps: Steps averaged, >= 0; 0 means that nothing was measured since the last row.
        local_batch_size: Samples per step of this worker in those steps.
        memory_bytes: Peak memory of the worker's device at this size of its micro-batches, bytes.
        data_wait_seconds: Waiting for the loader.
        transfer_seconds: Host to device.
        forward_seconds: Forward passes and loss.
        backward_seconds: Backward passes.
        comm_wait_seconds: Blocked on reductions after the own backward ended: what others cost.
        optimizer_seconds: Unscale, clip, optimizer and scheduler.
        step_seconds: From the end of one step to the end of the next.
        memory_limit_bytes: What the worker could have had, bytes.
        micro_batch_size: Samples in one forward pass at most; 0 = not limited, -1 = not told.
        throttled_seconds: In which a CPU quota kept the worker from running.
        staleness_steps: Steps under way after a step; only with a staleness bound.
        lag_steps: Steps under way that were reduced already when a step had been computed: 0 on the
            worker that is furthest ahead, the bound on the one that the others wait for.
        other_seconds: Of the step in none of its phases: the script's own work between steps.
        overlapped_comm_seconds: With a reduction under way while the worker did something else.
        processor_seconds: Processor time of all its threads outside waits for reductions.
        memory_stall_seconds: In which its control group's processes waited for memory.
        evaluation_seconds: This worker's part of `Trainer.evaluate` between the steps.
        contention_seconds: In which its training thread could have run and had no processor: other
            threads had it, or a quota held it back.
        garbage_seconds: In Python's garbage collection, in whichever phase that happened.
        quota_seconds: In which a CPU quota gives the processor time that a step takes, that of its
            reduction included: no step can be shorter where this worker is the last. 0 without one.
    """

    num_steps: int
    local_batch_size: int
    memory_bytes: float
    data_wait_seconds: float
    transfer_seconds: float
    forward_seconds: float
    backward_seconds: float
    comm_wait_seconds: float
    optimizer_seconds: float
    step_seconds: float
    throttled_seconds: float = math.nan
    memory_limit_bytes: float = math.nan
    micro_batch_size: int = -1
    staleness_steps: float = math.nan
    lag_steps: float = math.nan
    other_seconds: float = math.nan
    overlapped_comm_seconds: float = math.nan
    processor_seconds: float = math.nan
    memory_stall_seconds: float = math.nan
    evaluation_seconds: float = math.nan
    contention_seconds: float = math.nan
    garbage_seconds: float = math.nan
    quota_seconds: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """The worker's own time in the phases of a step, before any wait for others."""
        return float(sum(_own_seconds(self)))

    @property
    def samples_per_busy_second(self) -> float:
        """Speed of its own, without any wait; NaN: it had no samples, or was not measured."""
        is_known = self.local_batch_size > 0 and self.busy_seconds > 0
        return self.local_batch_size / self.busy_seconds if is_known else math.nan

    @property
    def own_seconds(self) -> float:
        """The same with what its script does between steps: what the others may wait for."""
        return self.busy_seconds + self.other_seconds
