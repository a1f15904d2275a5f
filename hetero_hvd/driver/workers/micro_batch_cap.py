"""What a slot's worker may put into memory at once, after the kernel has killed it for too much."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_hvd.messages import OutOfMemory, WorkerId

"""Of a supervisor whose worker the kernel has killed for want of memory: EX_OSERR of sysexits.h,
which nothing else here uses. Everywhere else this is the 137 of any SIGKILL."""

ONE_SAMPLE = (
    "the kernel killed it for want of memory with one sample at a time: give it more (the control "
    "group's limit), lower what a sample needs, use activation checkpointing, a lower precision "
    "or, on three workers or more, shard_optimizer='auto'"
)
"""Why such a worker is not started again."""


@dataclass(kw_only=True)
class MemoryCap:
    """The largest micro-batch of a slot.

    Attributes:
        told: Largest micro-batch that the running worker has begun, samples; 0 = none yet.
        limit: Samples that its workers never exceed; 0 = not limited.
        failed: With which micro-batch the last worker was killed, if a smaller one may help; else
            0.
        is_hopeless: Whether the last worker was killed with one sample at a time.
    """

    told: int = 0
    limit: int = 0
    failed: int = 0
    is_hopeless: bool = False

    def ended(self, *, was_killed: bool) -> None:
        """The running worker has ended.

        Half of what it was killed with is the limit from now on. There is nothing to be learnt if
        it had not begun to compute, had only one sample at a time, or does not keep the limit.

        Args:
            was_killed: By the kernel, for want of memory.
        """
        is_kept = not self.limit or self.told <= self.limit
        self.failed = self.told if was_killed and self.told > 1 and is_kept else 0
        if self.failed:
            self.limit = self.failed // 2
        self.is_hopeless = was_killed and self.told == 1
        self.told = 0

    def as_event(self, worker: WorkerId, step: int) -> OutOfMemory:
        """What has happened to the last worker.

        Args:
            worker: Who it was.
            step: The last one heard of.
        """
        return OutOfMemory(
            worker=worker,
            step=step,
            micro_batch_size=self.failed,
            next_micro_batch_size=self.limit,
            error="the kernel killed it",
        )
