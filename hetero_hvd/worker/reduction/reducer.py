"""Sums the workers' gradients in buckets while the backward pass is still running.

gradient = sum over ranks of (sum over own samples of d loss / N): each worker scales its own loss,
the reduction is a plain sum, so that the result is exact for any shares. (Horovod's
`DistributedOptimizer` averages per-rank means, which is wrong as soon as the counts differ, and
allows one backward a step.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.nn import Parameter

from hetero_hvd.errors import UserError
from hetero_hvd.probes.kernel.throttling import CpuQuota
from hetero_hvd.worker.comm.horovod import Collective, Interrupted
from hetero_hvd.worker.options import DEFAULT_BUCKET_BYTES, Compression
from hetero_hvd.worker.reduction.bucket import HALVES, NUM_WIDENED, Bucket, BucketSum, Gradients

FIRST_BUCKET_BYTES = 2**20
"""As in PyTorch's DistributedDataParallel: a small first one lets the reduction begin early in the
backward pass."""

WIDENED_RATIO = 4
"""Buckets of half precision are closed at this part of the size, so that what travels of them, in
float32, is half as large: a few of them are there at once beside the gradients themselves."""

EARLY_BYTES = 4 * 2**20
"""Under a CPU quota a smaller bucket waits for those at the end of the step. Each further cycle of
Horovod takes 0.8 ms of processor time, a third of what a sum of 2 MiB takes; where that is short,
nothing is hidden behind a backward pass that has to wait for it."""


class Reducer:
    """The gradients of one model, reduced over all workers.

    Order of calls: `build` with the model's parameters, and again when they change. In a step:
    `prepare`, then backward passes with `last_backward` set before the last, then `seal` and
    `take`. After a backward pass that failed: `prepare_again`, and all passes once more.

    Args:
        bucket_bytes: Size at which a bucket is closed.
        compression: What travels: `none`, the gradients as they are; `fp16`, half the bytes;
            `fp16-feedback`, and what rounding loses is added to the worker's next gradient
            (Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019). A worker that is lost
            takes at most one step's rounding with it.

    Attributes:
        overlap: Whether a bucket is submitted as soon as the last backward has completed it, and
            goes on with others.
        copies: Whether what travels is a copy, so that the next step can begin before it is back.
        inspects: Whether `Gradients.own_are_finite` is found out; that is a pass over them.
        expected_factor: From a reduced sum to the gradient of the mean loss, as far as is known
            while it is submitted, > 0.
    """

    def __init__(
        self,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        compression: Compression = "none",
    ) -> None:
        self._compression = compression
        self._bucket_bytes = bucket_bytes
        self._first_bucket_bytes = min(bucket_bytes, FIRST_BUCKET_BYTES)
        self._buckets: list[Bucket] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._collective: Collective | None = None
        self._fault: Interrupted | None = None
        self._sealed: list[Bucket] = []
        self.overlap = True
        self.last_backward = False
        self.copies = False
        self.inspects = False
        self.expected_factor = 1.0
        self._tag_index = 0
        self._own_are_finite = True
        self._quota = CpuQuota()
        self._has_quota = False

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters that take part, in the order of the buckets."""
        return [parameter for bucket in self._buckets for parameter in bucket.parameters]

    @property
    def sealed(self) -> list[BucketSum]:
        """What the step adds, after `seal`; of each bucket."""
        return [bucket.sum for bucket in self._buckets if bucket.sum is not None]

    @property
    def wire_dtype(self) -> torch.dtype:
        """Type of the first bucket's elements under way.

        Horovod joins small reductions of one type into one operation; another type costs a second
        one, which is more than a millisecond where all workers share a machine's cores.
        """
        is_double = bool(self._buckets) and self._buckets[0].flat.dtype == torch.float64
        return torch.float64 if is_double else torch.float32

    def build(self, parameters: Iterable[Parameter]) -> None:
        """Reduce these from now on; those without `requires_grad` are left out.

        Raises:
            UserError: A parameter is of a kind that cannot be reduced.
        """
        self.release()
        group: list[Parameter] = []
        group_bytes = 0
        # Backward produces gradients in about the reverse order of the parameters.
        for parameter in reversed(list(parameters)):
            if not parameter.requires_grad:
                parameter.grad = None
                continue
            if not parameter.dtype.is_floating_point:
                raise UserError(
                    f"a parameter is of {parameter.dtype}: must be a real floating-point type"
                )
            alike = group and (group[0].dtype, group[0].device) == (
                parameter.dtype,
                parameter.device,
            )
            limit = self._bucket_bytes if self._buckets else self._first_bucket_bytes
            limit //= WIDENED_RATIO if self._widens(parameter) else 1
            if group and (not alike or group_bytes >= limit):
                self._add_bucket(group)
                group, group_bytes = [], 0
            group.append(parameter)
            group_bytes += parameter.numel() * parameter.element_size()
        if group:
            self._add_bucket(group)

    def release(self) -> None:
        """Let go of the parameters; what they have as gradients stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._buckets = []

    def prepare(self, collective: Collective, tag_index: int = 0) -> None:
        """Drop the gradients and get ready for a step's backward passes.

        Args:
            collective: The rendezvous.
            tag_index: Another one than those of the steps under way, the same on all workers: it
                becomes part of the reductions' names.
        """
        self._collective = collective
        self._tag_index = tag_index
        self._fault = None
        self._sealed = []
        self.last_backward = False
        self._own_are_finite = True
        has_small = len(self._buckets) > 1 and any(map(_is_small, self._buckets))
        self._has_quota = has_small and math.isfinite(self._quota.cores())
        for bucket in self._buckets:
            bucket.prepare()

    def prepare_again(self) -> None:
        """The backward passes of this step start anew; what was submitted stays, as it is final."""
        self.last_backward = False
        for bucket in self._buckets:
            if bucket.sum is None:
                bucket.prepare()
            else:
                bucket.close()

    def seal(self) -> None:
        """Make ready what the backward passes have not submitted, such as unused parameters.

        All that a step submits at its end is made ready before its first sum starts: Horovod waits
        a tenth of a millisecond for what belongs together, and what is later costs a cycle more.
        """
        for bucket in self._buckets:
            if bucket.sum is None and self._seal(bucket):
                self._sealed.append(bucket)

    def take(self) -> Gradients:
        """Submit what `seal` has made ready, and hand over.

        Raises:
            Interrupted: The rendezvous broke.
        """
        for bucket in self._sealed:
            if bucket.sum is not None and (not bucket.sum.widens or self._has_room()):
                self._start(bucket.sum)
        self._sealed = []
        if self._fault is not None:
            raise self._fault
        collective, tag_index = self._collective, self._tag_index

        def start(each: BucketSum) -> None:
            if collective is not None:
                each.start(collective, tag_index)

        return Gradients(self.sealed, self._own_are_finite if self.inspects else None, start)

    def _widens(self, parameter: Parameter) -> bool:
        return self._compression == "none" and parameter.dtype in HALVES

    def _add_bucket(self, group: list[Parameter]) -> None:
        bucket = Bucket(len(self._buckets), group, self._compression)
        self._buckets.append(bucket)
        for place, parameter in enumerate(group):
            hook = self._make_hook(bucket, place)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def _make_hook(self, bucket: Bucket, place: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        def on_gradient(parameter: torch.Tensor) -> None:
            if bucket.is_closed:
                parameter.grad = None
                return
            if bucket.sum is not None:
                raise UserError(
                    "a gradient arrived after its bucket was reduced: "
                    "use checkpoint(use_reentrant=False)"
                )
            view = bucket.views[place]
            grad = parameter.grad
            if grad is not None and grad.data_ptr() != view.data_ptr():
                if grad.is_sparse:
                    raise UserError(
                        "sparse gradients are not reduced: use sparse=False in the embedding"
                    )
                # The first one of this step: put what arrived where it belongs.
                view.copy_(grad.detach())
                parameter.grad = view
            bucket.seen[place] = 1.0
            if self.last_backward and self._collective is not None:
                self._collective.operations.poll_if_due()
                bucket.pending.discard(place)
                if self.overlap and not bucket.pending and self._may_launch(bucket):
                    self._launch(bucket)

        return on_gradient

    def _may_launch(self, bucket: Bucket) -> bool:
        """Whether more gradients are to come: else nothing is left to hide a reduction behind.

        What comes last is submitted with the step's totals, in one cycle of Horovod.
        """
        if self._has_quota and _is_small(bucket):
            return False
        if bucket.widens and not self.copies and not self._has_room():
            return False
        return any(other.pending for other in reversed(self._buckets))

    def _has_room(self) -> bool:
        """Whether one more bucket may be there in float32; takes back those that have arrived."""
        wide = [each.sum for each in self._buckets if each.sum is not None and each.sum.is_wide]
        if len(wide) < NUM_WIDENED or self._collective is None:
            return True
        for each in wide:
            if self._collective.is_done(each.handle):
                try:
                    self._collective.wait(each.handle)
                except Interrupted as fault:  # not through autograd: `take` raises it
                    self._fault = fault
                    return False
                each.arrived()
        return any(not each.is_wide for each in wide)

    def _launch(self, bucket: Bucket) -> None:
        if self._seal(bucket) and bucket.sum is not None:
            self._start(bucket.sum)

    def _seal(self, bucket: Bucket) -> bool:
        """Make a bucket ready; False: nothing is submitted any more."""
        if self._fault is not None or self._collective is None:
            return False
        bucket.complete()
        if self.inspects:
            self._own_are_finite &= bool(bucket.flat.isfinite().all())
        bucket.seal(copies=self.copies, factor=self.expected_factor)
        return True

    def _start(self, each: BucketSum) -> None:
        if self._fault is not None or self._collective is None:
            return
        try:
            each.start(self._collective, self._tag_index)
        except Interrupted as fault:  # not through autograd: `take` raises it
            self._fault = fault


def _is_small(bucket: Bucket) -> bool:
    return bucket.flat.nbytes < EARLY_BYTES
