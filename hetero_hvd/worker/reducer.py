"""Sums the workers' gradients in buckets while the backward pass is still running.

gradient = sum over ranks of (sum over own samples of d loss / N): each worker scales its own loss,
the reduction is a plain sum, so that the result is exact for any shares. (Horovod's
`DistributedOptimizer` averages per-rank means, which is wrong as soon as the counts differ, and
allows one backward a step.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch.nn import Parameter

from hetero_hvd.errors import UserError
from hetero_hvd.worker.collective import Collective, Handle, Interrupted

DEFAULT_BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""As in PyTorch's DistributedDataParallel: large ones amortise latency, a small first one lets the
reduction begin early in the backward pass."""


Compression = Literal["none", "fp16", "fp16-feedback"]
"""Not bfloat16: Horovod 0.28.1 cannot sum it."""


class _Bucket:
    """Gradients of several parameters in one flat buffer, then one `used` flag for each.

    Each parameter's `grad` is a view into the buffer, so nothing is copied. The flags are summed
    along: a parameter that no worker used keeps `grad=None`, as it would in one process.
    """

    def __init__(self, index: int, parameters: list[Parameter], compression: Compression) -> None:
        self.index = index
        self._compression = compression
        self._residual: torch.Tensor | None = None
        self._next_residual: torch.Tensor | None = None
        self.parameters = parameters
        first = parameters[0]
        elements = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(elements + len(parameters), dtype=first.dtype, device=first.device)
        self.views, offset = [], 0
        for parameter in parameters:
            view = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            self.views.append(view)
            offset += parameter.numel()
        self._used = self.flat[offset:]
        self._wire = self.flat
        self.handle: Handle = None
        self.is_closed = False
        self.pending: set[int] = set()
        self.seen = [0.0] * len(parameters)

    def prepare(self) -> None:
        self.flat.zero_()
        self.handle = None
        self.is_closed = False
        self.pending = set(range(len(self.parameters)))
        self.seen = [0.0] * len(self.parameters)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def close(self) -> None:
        """Let further gradients go elsewhere, where the hook drops them."""
        self.is_closed = True
        for parameter in self.parameters:
            parameter.grad = None

    def launch(self, collective: Collective) -> None:
        # Horovod has no bfloat16, and half-precision sums lose bits: both travel as float32.
        self._used.copy_(torch.tensor(self.seen))
        self._wire = self._on_the_wire()
        self.handle = collective.sum_async(self._wire, f"gradients.{self.index}")

    def finish(self, collective: Collective) -> None:
        collective.wait(self.handle)

    def _on_the_wire(self) -> torch.Tensor:
        if self._compression == "none":
            half = self.flat.dtype in (torch.float16, torch.bfloat16)
            return self.flat.float() if half else self.flat
        if self._residual is not None:
            self.flat.add_(self._residual)
        wire = self.flat.half()
        if self._compression == "fp16-feedback":
            lost = torch.nan_to_num(self.flat - wire, nan=0.0, posinf=0.0, neginf=0.0)
            lost[-len(self.parameters) :] = 0.0  # the flags are exact
            self._next_residual = lost
        return wire

    def publish(self, factor: float) -> None:
        self._residual = self._next_residual  # only now: the step may have been taken again
        if self._wire is not self.flat:
            self.flat.copy_(self._wire)
        flags = self._used.tolist()
        for parameter, view, flag in zip(self.parameters, self.views, flags, strict=True):
            parameter.grad = view if flag else None
        if factor != 1.0:
            self.flat.mul_(factor)


class Reducer:
    """The gradients of one model, reduced over all workers.

    Order of calls in a step: `prepare`, then backward passes with `last_backward` set before the
    last, `launch_rest`, `wait`, `publish`. After a backward pass that failed, `prepare_again` and
    all passes once more.

    Args:
        parameters: All parameters; those without `requires_grad` are left out.
        bucket_bytes: Size at which a bucket is closed.
        compression: What travels: `none`, the gradients as they are; `fp16`, half the bytes;
            `fp16-feedback`, and what rounding loses is added to the worker's next gradient
            (Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019). A worker that is lost
            takes at most one step's rounding with it.

    Attributes:
        inspects: Whether `own_is_finite` is found out; it costs a pass over the gradients.
        own_is_finite: Whether this worker's own gradients hold no infinity and no NaN.

    Raises:
        UserError: A parameter is of a kind that cannot be reduced.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        compression: Compression = "none",
    ) -> None:
        self._compression = compression
        self._parameters = list(parameters)
        self._bucket_bytes = bucket_bytes
        self._first_bucket_bytes = min(bucket_bytes, FIRST_BUCKET_BYTES)
        self._trainable: tuple[bool, ...] = ()
        self._buckets: list[_Bucket] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._collective: Collective | None = None
        self._fault: Interrupted | None = None
        self.overlap = True
        self.last_backward = False
        self.inspects = False
        self.own_is_finite = True

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters that take part, in the order of the buckets."""
        return [parameter for bucket in self._buckets for parameter in bucket.parameters]

    @property
    def wire_dtype(self) -> torch.dtype:
        """Type of the first bucket's elements under way.

        Horovod joins small reductions of one type into one operation; another type costs a second
        one, which is more than a millisecond where all workers share a machine's cores.
        """
        is_double = bool(self._buckets) and self._buckets[0].flat.dtype == torch.float64
        return torch.float64 if is_double else torch.float32

    def prepare(self, collective: Collective) -> None:
        """Zero the gradients and get ready for a step's backward passes.

        Rebuilds the buckets when parameters were frozen or unfrozen since the last step.
        """
        trainable = tuple(parameter.requires_grad for parameter in self._parameters)
        if trainable != self._trainable:
            self._build(trainable)
        self._collective = collective
        self._fault = None
        self.last_backward = False
        self.own_is_finite = True
        for bucket in self._buckets:
            bucket.prepare()

    def prepare_again(self) -> None:
        """The backward passes of this step start anew; what was submitted stays, as it is final."""
        self.last_backward = False
        for bucket in self._buckets:
            if bucket.handle is None:
                bucket.prepare()
            else:
                bucket.close()

    def launch_rest(self) -> None:
        """Submit every bucket that the backward passes have not completed (unused parameters)."""
        if self._collective is None:
            return
        for bucket in self._buckets:
            if bucket.handle is None:
                bucket.launch(self._collective)

    def wait(self) -> None:
        """Block until every bucket is reduced.

        Raises:
            Interrupted: A reduction broke; the gradients are undefined, nothing else was changed.
        """
        if self._fault is not None:
            raise self._fault
        if self._collective is not None:
            for bucket in self._buckets:
                bucket.finish(self._collective)

    def publish(self, factor: float) -> None:
        """Leave the reduced gradients, times `factor`, in the parameters' `grad`."""
        for bucket in self._buckets:
            bucket.publish(factor)

    def is_finite(self) -> bool:
        """Whether the reduced gradients hold no infinity and no NaN; the same on all workers."""
        sums = [bucket.flat.sum() for bucket in self._buckets]
        if not sums or bool(torch.stack([s.float() for s in sums]).isfinite().all()):
            return True
        return all(bool(bucket.flat.isfinite().all()) for bucket in self._buckets)

    def _build(self, trainable: tuple[bool, ...]) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets, self._trainable = [], [], trainable
        group: list[Parameter] = []
        group_bytes = 0
        # Backward produces gradients in about the reverse order of the parameters.
        for parameter in reversed(self._parameters):
            if not parameter.requires_grad:
                parameter.grad = None  # the optimizer would go on applying the last one
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
            if group and (not alike or group_bytes >= limit):
                self._add_bucket(group)
                group, group_bytes = [], 0
            group.append(parameter)
            group_bytes += parameter.numel() * parameter.element_size()
        if group:
            self._add_bucket(group)

    def _add_bucket(self, group: list[Parameter]) -> None:
        bucket = _Bucket(len(self._buckets), group, self._compression)
        self._buckets.append(bucket)
        for place, parameter in enumerate(group):
            hook = self._make_hook(bucket, place)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def _make_hook(self, bucket: _Bucket, place: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        def on_gradient(parameter: torch.Tensor) -> None:
            if bucket.is_closed:
                parameter.grad = None
                return
            view = bucket.views[place]
            grad = parameter.grad
            if grad is not None and grad.data_ptr() != view.data_ptr():
                if grad.is_sparse:
                    raise UserError(
                        "sparse gradients are not reduced: use sparse=False in the embedding"
                    )
                # Somebody set `grad` to None; put what arrived where it belongs.
                view.copy_(grad)
                parameter.grad = view
            if bucket.handle is not None:
                raise UserError(
                    "a gradient arrived after its bucket was reduced: "
                    "use checkpoint(use_reentrant=False)"
                )
            bucket.seen[place] = 1.0
            if self.last_backward:
                bucket.pending.discard(place)
                if self.overlap and not bucket.pending and self._collective is not None:
                    self._launch(bucket)

        return on_gradient

    def _launch(self, bucket: _Bucket) -> None:
        if self._fault is not None or self._collective is None:
            return
        if self.inspects:
            self.own_is_finite &= bool(bucket.flat.isfinite().all())
        try:
            bucket.launch(self._collective)
        except Interrupted as fault:  # not through autograd: `wait` raises it
            self._fault = fault
