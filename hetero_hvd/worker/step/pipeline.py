"""Takes the steps of a model, and applies each when the staleness bound asks for it.

With bound S step k is applied after step k + S has been computed, on every worker: a worker runs at
most S steps ahead of the slowest, and replicas are equal at equal numbers of applied steps (stale
synchronous parallel: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server, NeurIPS 2013, with the delay fixed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero_hvd.worker.comm.horovod import Collective, Interrupted
from hetero_hvd.worker.reduction.in_flight import ExchangeTrigger
from hetero_hvd.worker.step.training_mode import TrainingMode
from hetero_hvd.worker.step.training_step import (
    AppliedStep,
    KeepingStep,
    KeptParts,
    StepResult,
    TrainingStep,
)


class Pipeline:
    """The steps that are taken, and those of them that are not applied yet.

    Args:
        step: Computes and applies them.
        mode: For the bound, and whether a worker can lag behind.
        applied: Called with the loss of each applied step, in order.

    Attributes:
        counted: See `AppliedStep`; of the step that was applied last.
        meanwhile: Called while the sums of a step are under way, when there is nothing else to do.
    """

    def __init__(
        self,
        step: TrainingStep,
        mode: TrainingMode,
        applied: Callable[[float], None],
    ) -> None:
        self._step = step
        self._keeping = step if isinstance(step, KeepingStep) else None
        self._staleness = mode.staleness
        self._may_lag = mode.staleness.bound > 0 and not mode.shares_vary
        self._applied = applied
        self._lag = 0
        self.counted = 0.0
        self.meanwhile: Sequence[Callable[[], object]] = ()

    @property
    def num_in_flight(self) -> int:
        """Steps that are taken and not applied yet."""
        return len(self._step.in_flight)

    @property
    def bound(self) -> int:
        """The most that there may ever be after a step."""
        return self._staleness.bound

    def state(self) -> dict[str, float]:
        """Columns of `StepTiming`, without unit: steps under way, and the lag.

        The lag counts those under way that were reduced already when the newest step had been
        computed: 0 on the fastest worker, and the bound on the one that all others wait for.
        """
        return {"staleness": self.num_in_flight, "lag": self._lag} if self.bound else {}

    def take(self, collective: Collective, urgency: ExchangeTrigger) -> StepResult:
        """A part is computed: if its step is complete, submit it, and apply what is due.

        Args:
            collective: The rendezvous.
            urgency: See `TrainingStep.submit`.

        Raises:
            Interrupted: The rendezvous broke; call `discard`.
        """
        step = self._step
        if not step.part_done(collective):
            return StepResult(is_taken=True)
        if self._may_lag:
            self._lag = sum(flight.is_done(collective) for flight in step.in_flight)
        num_samples = step.submit(collective, urgency)
        for look in self.meanwhile:
            look()
        is_urgent = False
        while len(step.in_flight) > self._staleness.now:
            applied = self._apply_oldest(collective)
            if applied is None:
                return StepResult(again=True)
            is_urgent = applied.is_urgent
        return StepResult(is_taken=True, num_samples=num_samples, is_urgent=is_urgent)

    def drain(self, collective: Collective) -> None:
        """Apply all that is under way.

        Raises:
            Interrupted: The rendezvous broke; call `discard`.
        """
        self._step.restore()  # the script may have left its loop before the step was computed
        while self._step.in_flight:
            self._apply_oldest(collective)

    def discard(self, collective: Collective) -> None:
        """The rendezvous broke: apply what was reduced before, drop the rest.

        Dropped steps are computed anew, as the position of the data follows the applied steps.
        """
        self.suspend(collective)
        self.go_on(())

    def suspend(self, collective: Collective) -> None:
        """The same, but what this worker has computed may be kept until `go_on`."""
        if self._keeping is None:
            self._step.restore()
        else:
            self._keeping.close()
        flights = self._step.in_flight
        try:
            while self.bound and flights and flights[0].is_done(collective):
                self._apply_oldest(collective)
        except Interrupted:
            pass  # this one and those behind it are lost
        if self._keeping is None:
            self._step.abort()
        else:
            self._keeping.set_aside()

    @property
    def kept(self) -> KeptParts | None:
        """What was kept, in words for the other workers; None: nothing."""
        return None if self._keeping is None else self._keeping.kept

    def go_on(self, ranks: Sequence[int]) -> None:
        """All have met again; see `KeepingStep.go_on`."""
        if self._keeping is not None:
            self._keeping.go_on(ranks)

    def _apply_oldest(self, collective: Collective) -> AppliedStep | None:
        """What was applied; None: its sums could not be used, and all under way is dropped."""
        applied = self._step.apply_oldest(collective)
        if applied is None:
            self._step.abort()
        elif applied.num_samples:
            self.counted = applied.counted
            self._applied(applied.loss)
        return applied
