"""What the driver tells a worker."""

from __future__ import annotations

from hetero_hvd.messages.identity import GlooAddress, Message, WorkerId


class TraceRequested(Message, frozen=True):
    """Record the next steps. Sent by the driver.

    Attributes:
        num_steps: So many, from the next one on.
        profiler: Whether with torch's profiler.
        timeline: Whether with Horovod's timeline; rank 0 alone writes one.
    """

    num_steps: int
    profiler: bool
    timeline: bool


class Admit(Message, frozen=True):
    """You are a member: start Horovod with this environment.

    Attributes:
        environment: `HOROVOD_*` variables of this slot.
        rendezvous_id: Lower bound for the next rendezvous's id.
    """

    environment: dict[str, str]
    rendezvous_id: int


class BatchPlan(Message, frozen=True):
    """Who processes how many samples in each step, until the next plan.

    Attributes:
        rendezvous_id: Membership that it was made for; a stale plan is dropped.
        plan_id: Version, growing within a rendezvous; the newer one wins.
        from_step: First step that it holds for, the same on every worker. Rank 0 stamps it when it
            hands the plan on; what the driver sends is the earliest that it can be.
        exchange_steps: Steps between two exchanges of timings from then on, >= 1.
        workers: Members in rank order.
        local_batch_sizes: Samples per step in rank order; sums to the global batch size.
        reason: Why, in words.
        calibration_ratio: Part of its share that each member computes to measure itself before the
            plan's first step, > 0, <= 1: what they find is answered by another plan. 0: none.
    """

    rendezvous_id: int
    plan_id: int
    from_step: int
    exchange_steps: int
    workers: tuple[WorkerId, ...]
    local_batch_sizes: tuple[int, ...]
    reason: str
    calibration_ratio: float = 0.0

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step."""
        return sum(self.local_batch_sizes)


class ResetRequested(Message, frozen=True):
    """The membership should change: agree on a step with the others and reset after it.

    Attributes:
        reason: Why, in words.
        leaving: Members that will be none of the next membership.
    """

    reason: str
    leaving: tuple[WorkerId, ...] = ()


class MemberLost(Message, frozen=True):
    """A member is gone: leave the rendezvous at once instead of waiting for it in a collective.

    Without it the news travels from neighbour to neighbour as each closes its connections, and some
    that wait for a worker that waits itself learn of it by Gloo's timeout only.

    Attributes:
        host: Who is gone, as a Horovod host.
        rendezvous_id: The rendezvous that is broken; 0: the one that is forming.
    """

    host: str
    rendezvous_id: int


class Stop(Message, frozen=True):
    """Leave the job: the driver ends it, or this worker is no longer a member.

    Attributes:
        reason: Why, in words.
    """

    reason: str


class ClockAsked(Message, frozen=True):
    """What is the time?

    Attributes:
        asked_at_seconds: The driver's clock, since 1970; comes back in the answer.
    """

    asked_at_seconds: float


class RouteAsked(Message, frozen=True):
    """Can you reach this worker? Sent by the driver.

    Attributes:
        host: The other worker, as a Horovod host.
        gloo: Where it is to be reached.
    """

    host: str
    gloo: GlooAddress


FromDriver = (
    Admit
    | BatchPlan
    | ResetRequested
    | MemberLost
    | TraceRequested
    | Stop
    | ClockAsked
    | RouteAsked
)
