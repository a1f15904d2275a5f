"""Takes the steps of a model, and applies each when the staleness bound asks for it.

With bound S step k is applied after step k + S has been computed, on every worker: a worker runs at
most S steps ahead of the slowest, and replicas are equal at equal numbers of applied steps (stale
synchronous parallel: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server, NeurIPS 2013, with the delay fixed).
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_hvd.worker.comm.horovod import Collective, Interrupted
from hetero_hvd.worker.step.in_flight import ExchangeTrigger
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.step.step import Step


class Pipeline:
    """The steps that are taken, and those of them that are not applied yet.

    Args:
        step: Computes and applies them.
        staleness: The bound.
        applied: Called with the loss of each applied step, in order.
    """

    def __init__(self, step: Step, staleness: Staleness, applied: Callable[[float], None]) -> None:
        self._step = step
        self._staleness = staleness
        self._applied = applied
        self._lag = 0

    @property
    def num_in_flight(self) -> int:
        """Steps that are taken and not applied yet."""
        return len(self._step.in_flight)

    @property
    def varies(self) -> bool:
        """Whether a worker's samples differ from step to step."""
        return False

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

    def take(self, collective: Collective, urgency: ExchangeTrigger) -> int | None:
        """Submit the step that was computed, and apply what is due.

        Args:
            collective: The rendezvous.
            urgency: See `Step.launch`.

        Returns:
            Samples of this worker in the step that was submitted; None: in none.

        Raises:
            Interrupted: The rendezvous broke; call `forget`.
            TakeAgain: Compute the step again.
        """
        if self.bound:
            self._lag = sum(flight.is_done(collective) for flight in self._step.in_flight)
        num_samples = self._step.launch(collective, urgency)
        while self._step.is_due:
            self._land(collective)
        return num_samples

    def drain(self, collective: Collective) -> None:
        """Apply all that is under way.

        Raises:
            Interrupted: The rendezvous broke; call `forget`.
        """
        self._step.put_back()  # the script may have left its loop before the step was computed
        while self._step.in_flight:
            self._land(collective)

    def forget(self, collective: Collective) -> None:
        """The rendezvous broke: apply what was reduced before, drop the rest.

        Dropped steps are computed anew, as the position of the data follows the applied steps.
        """
        self._step.put_back()
        flights = self._step.in_flight
        try:
            while self.bound and flights and flights[0].is_done(collective):
                self._land(collective)
        except Interrupted:
            pass  # this one and those behind it are lost
        self._step.undo()

    def _land(self, collective: Collective) -> None:
        self._applied(self._step.land(collective))
