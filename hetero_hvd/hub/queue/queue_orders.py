"""What people order of the queue, and which of them may."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hetero_hvd.core.queue.jobs import JobRequest, QueuedJob
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.core.queue.queue_events import (
    JobCancelled,
    JobHeld,
    JobMoved,
    JobReleased,
    ModelTried,
    QueueEvent,
)
from hetero_hvd.core.queue.why_waiting import holders_of, why
from hetero_hvd.discovery.submission.job_settings import check_settings, check_together
from hetero_hvd.discovery.submission.pinned_script import script_of
from hetero_hvd.discovery.submission.queue_link import (
    ListedDevice,
    ListedJob,
    LogPart,
    QueueListing,
    QueueOrder,
    SubmittedJob,
)
from hetero_hvd.errors import AllWrong, UserError
from hetero_hvd.hub.queue.devices.tried_nodes import tried
from hetero_hvd.hub.queue.job_queue import JobQueue
from hetero_hvd.hub.queue.job_runner import LOG
from hetero_hvd.hub.queue.queue_store import KeptJob
from hetero_hvd.security.local_sockets import PeerUser

MAX_LOG_BYTES = 2**16
MAX_SCRIPT_CHARACTERS = 100
"""In the list, which all read."""

MAX_JOBS = 1000
"""Of a user, that have not ended: each has its files on the hub's disk."""

COMMAND_SECONDS = 8 * 3600.0
"""A command keeps its devices until it ends, so it does end: after a working day."""

EVENTS: dict[str, Callable[[str, QueueOrder], QueueEvent]] = {
    "cancel": lambda name, _: JobCancelled(name),
    "hold": lambda name, _: JobHeld(name),
    "release": lambda name, _: JobReleased(name),
    "move": lambda name, order: JobMoved(name, order.pool, order.priority),
}
"""Orders about a job that are an event each, for its owner and operators."""


def check(submitted: SubmittedJob) -> None:
    """Refuse what says two things at once.

    Raises:
        UserError: It does.
    """
    wrong = AllWrong()
    with wrong.part():
        check_settings(submitted.settings)
    with wrong.part():
        check_together(submitted, submitted.settings)
    if submitted.is_command and submitted.max_devices != submitted.min_devices:
        words = "a command (--devices) has as many devices all the time, no --min and --max"
        wrong.take(UserError(f"submit: {words}"))
    wrong.check()


def _script(submitted: SubmittedJob) -> str:
    """See `JobRequest`."""
    return hashlib.sha256(script_of(submitted.command).encode()).hexdigest()[:16]


class QueueOrders:
    """Carries out orders. Used in the loop's thread only.

    Args:
        queue: What they are about.
        operators: Names of users who may do to all jobs what their owners may; root and the user
            of this process may anyway.
    """

    def __init__(self, queue: JobQueue, operators: Collection[str] = ()) -> None:
        self._queue = queue
        self._operators = frozenset(operators)

    def act(self, user: PeerUser, order: QueueOrder, tree: bytes = b"") -> Any:  # noqa: ANN401 - of JSON's kinds
        """Carry out an order.

        Args:
            user: Who orders, as the kernel or a token says.
            order: What.
            tree: The packed working tree of a job that is submitted.

        Raises:
            UserError: It cannot be done, or the user may not.
            OSError: The disk does not take it; then nothing has changed.
        """
        if order.name == "list":
            return self._list()
        if order.name == "submit":
            if order.submitted is None:
                raise UserError("submit: says nothing of a job")
            return self._submit(user, order.submitted, tree)
        if order.name not in {"why", "logs", *EVENTS}:
            names = ", ".join(["submit", "list", "why", "logs", *EVENTS])
            raise UserError(f"{order.name!r} is no order to the queue; there are {names}")
        if order.name in EVENTS:
            return self._change(user, order)
        kept = self._job(order.name, order.job)
        if order.name == "why":
            return self._why(kept)
        self._check_may(user, kept)
        return self._logs(kept, order.begin)

    def _change(self, user: PeerUser, order: QueueOrder) -> str | list[str]:
        """Change one job or several: all of them, or none; gives what each does then."""
        found = [
            self._job(order.name, number) for number in dict.fromkeys(order.jobs) or [order.job]
        ]
        for kept in found:
            self._check_may(user, kept)
        names = [str(kept.number) for kept in found]
        if order.jobs:  # of an array some may have ended
            names = [name for name in names if name in self._queue.state.jobs]
        self._queue.happened(*(EVENTS[order.name](name, order) for name in names))
        return [self._why(kept) for kept in found] if order.jobs else self._why(found[0])

    def _why(self, kept: KeptJob) -> str:
        return why(self._queue.state, str(kept.number), self._queue.now())

    def _check_may(self, user: PeerUser, kept: KeptJob) -> None:
        is_operator = user.uid in (0, os.geteuid()) or user.name in self._operators
        if not is_operator and user.uid != kept.uid:
            owner = kept.job.request.user
            raise UserError(f"job {kept.number}: is of {owner}, not of {user.name}")

    def _job(self, what: str, number: int | None) -> KeptJob:
        if number is None:
            raise UserError(f"{what}: say which job, by its number")
        kept = self._queue.kept.get(str(number))
        if kept is None:
            raise UserError(
                f"job {number}: there is none of that number; `hetero-hvd queue` lists them"
            )
        return kept

    def _submit(self, user: PeerUser, submitted: SubmittedJob, tree: bytes) -> Any:  # noqa: ANN401
        own = os.geteuid()
        if own not in (user.uid, 0):
            raise UserError(
                f"this hub runs as user {own} and starts no jobs of {user.name}: a hub of root "
                "runs each job as who has submitted it"
            )
        if hashlib.sha256(tree).hexdigest() != submitted.tree:
            raise UserError("submit: the working tree is not what was packed")
        jobs = self._queue.state.jobs
        num_jobs = sum(self._queue.kept[name].uid == user.uid for name in jobs)
        if num_jobs + len(submitted.array) > MAX_JOBS - (not submitted.array):
            raise UserError(f"submit: {user.name} has {MAX_JOBS} jobs that have not ended already")
        check(submitted)
        first = self._queue.next_number
        unused = self._tried(user, submitted)
        requests = [
            replace(self._request(user, submitted, first, number), trial_words=unused)
            for number in range(first, first + max(1, len(submitted.array)))
        ]
        for request, index in itertools.zip_longest(requests, submitted.array):
            element = [] if index is None else [index]
            kept = msgspec.structs.replace(submitted, array=element, trials=[])
            self._queue.submit(request, kept, user.uid, tree)
        return {"job": first, "why": why(self._queue.state, str(first), self._queue.now())}

    def _tried(self, user: PeerUser, submitted: SubmittedJob) -> str:
        """Take in what trials of the script have measured; gives why the newest has no use."""
        words = ""
        for each in submitted.trials:
            found = tried(each, self._queue.emulations, self._queue.now())
            if isinstance(found, str):
                words = found
                continue
            words = ""
            self._queue.happened(ModelTried(user.name, _script(submitted), each.model, found))
        return words

    def _request(
        self, user: PeerUser, submitted: SubmittedJob, first: int, number: int
    ) -> JobRequest:
        """What the policy knows of a job, or of an element of an array."""
        deadline = submitted.deadline_seconds
        limit = submitted.time_limit_seconds
        if limit is None:
            limit = COMMAND_SECONDS if submitted.is_command else math.inf
        idle = submitted.idle_limit_seconds
        return JobRequest(
            job=str(number),
            user=user.name,
            pool=submitted.pool,
            priority=submitted.priority,
            min_devices=submitted.min_devices,
            max_devices=submitted.max_devices,
            needs=tuple(map(DeviceNeed.parse, submitted.needs)),
            retries=submitted.retries,
            script=_script(submitted),
            deadline_seconds=math.inf if deadline is None else self._queue.now() + deadline,
            after=tuple(map(str, submitted.after)),
            is_shrinkable=not submitted.is_command,
            time_limit_seconds=limit,
            idle_limit_seconds=math.inf if idle is None else idle,
            array=str(first) if submitted.array else "",
            array_limit=submitted.array_limit,
        )

    def _list(self) -> QueueListing:
        state = self._queue.state
        holders = holders_of(state)
        return QueueListing(
            jobs=[self._listed(name, kept, holders) for name, kept in self._queue.kept.items()],
            devices=[
                ListedDevice(
                    device=each.device,
                    pool=each.pool,
                    kind=each.kind,
                    condition=each.condition,
                    link_bytes_per_second=state.table.links.bytes_per_second(each.node),
                    job=int(holders[each.device].request.job) if each.device in holders else None,
                )
                for each in state.devices.values()
            ],
        )

    def _listed(self, name: str, kept: KeptJob, holders: Mapping[str, QueuedJob]) -> ListedJob:
        request = kept.job.request
        return ListedJob(
            job=kept.number,
            user=request.user,
            pool=request.pool,
            priority=request.priority,
            state="held" if kept.job.is_held and not kept.job.devices else kept.job.phase,
            script=kept.submission.command[0][:MAX_SCRIPT_CHARACTERS],
            devices=list(kept.job.devices),
            attempt=kept.attempt,
            why=why(self._queue.state, name, self._queue.now(), holders),
        )

    def _logs(self, kept: KeptJob, begin: int) -> LogPart:
        name = str(kept.number)
        is_over = kept.job.phase == "ended" and not self._queue.is_leaving(name)
        content = self._queue.process_of(name).read(LOG, begin, MAX_LOG_BYTES) or b""
        if len(content) == MAX_LOG_BYTES:  # no character is torn
            content = content[: content.rfind(b"\n") + 1] or content
        return LogPart(
            text=content.decode(errors="replace"),
            next=begin + len(content),
            is_over=is_over and len(content) < MAX_LOG_BYTES // 2,
        )
