"""What a worker without our driver tells, and to whom: in place of the channel to a driver.

Rank 0 leads the run. What the others tell rides on the next exchange of timings. The first rank on
another node than rank 0's keeps a copy of the record, which comes to it in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hetero_hvd.messages import (
    BatchPlan,
    Calibrated,
    Event,
    Finished,
    FromWorker,
    Leaving,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.probes.sampling.follower import SampleFollower
from hetero_hvd.probes.sampling.local_samples import follow_samples
from hetero_hvd.run.records.run_folder import new_identity
from hetero_hvd.worker.lead.outbox import Copied, Outbox
from hetero_hvd.worker.lead.script_end import ScriptEnd
from hetero_hvd.worker.lead.settings import LeadSettings

if TYPE_CHECKING:
    from hetero_hvd.worker.lead.lead import Lead
    from hetero_hvd.worker.lead.run_copy import RunCopy

PLAN_TIMEOUT_SECONDS = 2.0
"""How long a new membership waits for rank 0's first plan before it starts with even shares."""


class Recording:
    """This process's part in the record of its run.

    Args:
        settings: What the run is to be like.
        worker: Who this is.
        progress: Gives the number of applied steps.

    Attributes:
        run: Which run this is; until all have agreed, what this process would call it.
    """

    def __init__(
        self, settings: LeadSettings, worker: WorkerId, *, progress: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._progress = progress
        self._process = os.getpid()
        self._outbox = Outbox("the record of the run")
        self._copies = Outbox("the copy of the record")
        self._lead: Lead | None = None
        self._copy: RunCopy | None = None
        self._ended: list[Lead | RunCopy] = []
        self._sampler: SampleFollower | None = None
        self._early: list[FromWorker] = []
        self._members: tuple[WorkerId, ...] = ()
        self._has_keeper = False
        self._has_finished = self._has_left = False
        self._script_end = ScriptEnd(worker, self.tell)
        record = settings.record
        self.run = new_identity(
            settings.job.output, worker.node, name=record.name, tags=record.tags
        )

    @property
    def newest_plan(self) -> BatchPlan | None:
        """The newest plan; None on other ranks than 0."""
        return self._lead.newest if self._lead is not None else None

    def tell(self, message: FromWorker) -> None:
        """Tell of something; never waits."""
        self._has_finished = isinstance(message, Finished) or self._has_finished
        self._has_left = isinstance(message, Leaving) or self._has_left
        if self._lead is not None:
            self._lead.told(message)
        elif self._members:
            self._outbox.put(message)
        else:
            self._early.append(message)  # whether this is rank 0 is not known yet

    def joined(self, event: WorkersJoined, grain: int) -> BatchPlan | None:
        """A membership is complete in which this is rank 0; gives its first plan.

        Args:
            event: Tells of it.
            grain: Samples that are never divided.
        """
        self._has_keeper = keeper_of(event.workers) is not None
        if self._lead is None:
            from hetero_hvd.worker.lead.lead import Lead  # noqa: PLC0415 - rank 0 alone needs it

            self._end_copy(None)
            self._copies.clear()  # those of an earlier time in which this was rank 0
            self._lead = Lead(
                self._settings,
                self.run,
                self._worker.node,
                copy=self._hand_on,
                before=self._join_ended(),  # their folder is the lead's from now on
            )
        return self._lead.joined(event, grain, timeout_seconds=PLAN_TIMEOUT_SECONDS)

    def calibrated(self, event: Calibrated) -> BatchPlan | None:
        """The members have measured themselves; gives the plan that follows, if there is one."""
        if self._lead is None:
            return None
        return self._lead.calibrated(event, timeout_seconds=PLAN_TIMEOUT_SECONDS)

    def met(self, members: tuple[WorkerId, ...], rank: int) -> None:
        """All members of a membership have its first plan.

        Args:
            members: In rank order.
            rank: Of this worker.
        """
        self._members = members
        if rank and self._lead is not None:
            self._lead.end(None)
            self._ended.append(self._lead)
            self._lead = None
        is_first_of_node = members.index(self._worker) == rank
        is_first_of_node &= all(other.node != self._worker.node for other in members[:rank])
        is_keeper = rank > 0 and self._settings.record.record and keeper_of(members) == rank
        if is_keeper and self._copy is None:
            from hetero_hvd.worker.lead.run_copy import RunCopy  # noqa: PLC0415 - few need it

            self._copy = RunCopy(self.run, self._worker.node, before=self._join_ended())
        elif not is_keeper:
            self._end_copy(None)
        self._sample(is_wanted=is_first_of_node and rank > 0)
        early, self._early = self._early, []
        for message in early:
            self.tell(message)
        if self._lead is not None:  # no exchange has taken it along before this became rank 0
            while waiting := self._outbox.take():
                self._lead.heard(waiting)

    def payload(self) -> bytes:
        """What the next exchange is to take along; empty where there is nothing."""
        return (self._outbox if self._lead is None else self._copies).take()

    def heard(self, payloads: Sequence[bytes]) -> None:
        """What an exchange has brought from all members, in rank order; never waits."""
        if self._copy is not None and payloads[0]:
            self._copy.heard(payloads[0])
        for payload in payloads[1:] if self._lead is not None else ():
            if payload and self._lead is not None:
                self._lead.heard(payload)

    def end(self) -> None:
        """The script has ended: the record is completed beside what is still to be done here."""
        if os.getpid() != self._process:  # a forked child has no part in it
            return
        self._sample(is_wanted=False)
        ending = None if self._has_left else self._ending()
        if self._lead is not None:
            self._lead.end(ending)
        self._end_copy(ending)

    def close(self) -> None:
        """Wait until the record is complete."""
        if os.getpid() != self._process:
            return
        if self._lead is not None:
            self._lead.join()
        self._join_ended()()
        self._outbox.close()
        self._copies.close()

    def _hand_on(self, at_unix_seconds: float, event: Event) -> None:
        """In the lead's thread: for who keeps a copy."""
        if self._has_keeper:
            self._copies.put(Copied(at_unix_seconds, event))

    def _end_copy(self, ending: tuple[int, str] | None) -> None:
        if self._copy is not None:
            self._copy.end(ending)
            self._ended.append(self._copy)
            self._copy = None

    def _join_ended(self) -> Callable[[], None]:
        """Gives what waits for all that has written here until now, but not for ever."""
        ended = tuple(self._ended)

        def join() -> None:
            for one in ended:
                one.join()

        return join

    def _sample(self, *, is_wanted: bool) -> None:
        """Tell what this node does, for all of its workers."""
        seconds = self._settings.job.sample_seconds * self._settings.record.record
        if is_wanted and seconds and self._sampler is None:
            self._sampler = follow_samples(self._worker.node, self._outbox.put, seconds=seconds)
        elif not is_wanted and self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def _ending(self) -> tuple[int, str]:
        if self._script_end.ending is not None:
            return self._script_end.ending
        if self._has_finished:
            return 0, "the training is finished"
        return 0, f"the script has ended after {self._progress()} steps"


def keeper_of(members: Sequence[WorkerId]) -> int | None:
    """Rank of who keeps a copy of rank 0's record: the first on another node; None: all are on one.

    Args:
        members: In rank order.
    """
    ranks = (rank for rank, worker in enumerate(members) if worker.node != members[0].node)
    return next(ranks, None)
