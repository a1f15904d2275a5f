"""The queue at work: events become decisions, decisions are kept, and then carried out.

What there should be stands in the state, which is on the disk before anything follows from it.
Carrying out compares that with what there is: a nodes.yaml that differs is written, a start that is
not there is begun, one that should not be is asked to end. So it may be done any number of times,
by whichever hub, and what a crash has left half-done is done.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hetero_hvd.config.variables import ARRAY_VARIABLE
from hetero_hvd.core.queue.devices import DeviceCondition, QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.queue_events import (
    DeviceChanged,
    JobFailed,
    JobFinished,
    JobIdled,
    JobSubmitted,
    ModelTold,
    QueueDecision,
    QueueEvent,
)
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.view.queued.job_progress import FailingNode, ProgressFacts
from hetero_hvd.discovery.submission.queue_link import SubmittedJob
from hetero_hvd.errors import ConfigError, UserError
from hetero_hvd.hub.queue.devices.failing_devices import FailingDevices
from hetero_hvd.hub.queue.job_files import JobFiles
from hetero_hvd.hub.queue.job_news import news_of
from hetero_hvd.hub.queue.job_process import OF_THIS_PROCESS, JobProcess, JobUser, cause_of
from hetero_hvd.hub.queue.queue_cluster import QueueCluster
from hetero_hvd.hub.queue.queue_metrics import QueueMetrics
from hetero_hvd.hub.queue.queue_store import KeptJob, QueueStore

logger = logging.getLogger(__name__)

PLAN_SECONDS = 5.0
"""Between two plans without news: limits pass, and back-offs."""

CLUSTER_SECONDS = 1.0

MAX_ENDED = 1000
"""Jobs of a user that have ended and are still known, with their folders."""


class JobQueue:
    """Used in the loop's thread only.

    Args:
        folder: Of the hub's store.
        cluster: The devices.
        clock: Seconds by the hub's clock.
        user_of: As whom a user's jobs run, by number; None: as this process.
        lost_nodes: Names of nodes of which nothing is heard any more.
        owners: Gives names of nodes that their owners use, where jobs are guests.

    Attributes:
        state: What the policy knows.
        kept: Name to job, of all that are known.
        metrics: For Prometheus.

    Raises:
        JobError: What was kept is damaged.
        OSError: The disk does not give it.
    """

    def __init__(
        self,
        folder: Path,
        cluster: QueueCluster,
        clock: Callable[[], float],
        user_of: Callable[[int], JobUser | None],
        *,
        lost_nodes: Callable[[], Collection[str]] = frozenset,
        owners: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._files = JobFiles(folder / "queue")
        self._store = QueueStore(folder)
        self._cluster = cluster
        self._clock = clock
        self._ahead_seconds = 0.0
        self._user_of = user_of
        self._lost_nodes = lost_nodes
        self._owners = owners
        self._seen_owners: set[str] = set()
        self._processes: dict[str, JobProcess] = {}
        self._plan_at_seconds = 0.0
        self._cluster_at_seconds = 0.0
        self.kept: dict[str, KeptJob] = {}
        self._leaving: set[str] = set()
        self.metrics = QueueMetrics(self.now)
        self._failing = FailingDevices(folder / "queue" / "failing.json")
        self._ended: set[str] = set()
        self._unstarted: list[str] = []
        self._load()
        self.metrics.take(self.state)
        self._files.remove_unknown(self.kept)
        self._last_number = self._files.last_number

    def _load(self) -> None:
        """Take what is on the disk, in the place of whatever is here."""
        jobs = self._store.jobs()
        devices = {each.device: each for each in self._cluster.devices}
        had = {device for kept in jobs for device in kept.job.devices}
        gone = sorted(had - devices.keys())
        away = [QueueDevice(device=name, kind="gone", node="gone") for name in gone]
        self.state = QueueState([*devices.values(), *away], self._cluster.pools)
        self.kept = {str(each.number): each for each in jobs}
        if (facts := self._store.facts()) is not None:
            self.state.put_back(facts, [each.job for each in jobs])
            # After a reboot without a clock that goes on, time would stand still until it is there.
            self._ahead_seconds = max(self._ahead_seconds, facts.clock_seconds - self._clock())
            if not any(map(self._has_process, self.state.jobs)):
                self.state.pass_over(self.now())
        for name in [*gone, *(devices.keys() - self._cluster.listed)]:
            self.state.handle(DeviceChanged(name, "lost"), self.now())
        self._leaving = {name for name in self.state.ended if self.kept[name].attempt}
        self._ended = set(self.state.ended)

    @property
    def next_number(self) -> int:
        """Of the next job."""
        return max([self._last_number, *(each.number for each in self.kept.values())]) + 1

    def submit(self, request: JobRequest, submission: SubmittedJob, uid: int, tree: bytes) -> None:
        """Take a job in, and start it if devices are free for it.

        Raises:
            UserError: It can never run.
            OSError: The disk does not take it; then it is not there.
        """
        name, number = request.job, int(request.job)
        process = self._new_process(name, uid)
        self.state.handle(JobSubmitted(request), self.now())
        try:
            process.make(tree)
            self.kept[name] = KeptJob(number, uid, 0, self.state.jobs[name], submission)
            self._decide()
        except (OSError, UserError):
            self._load()
            self._files.remove(name)
            raise
        self._processes[name] = process
        self._begin_to_carry_out()

    def happened(self, *events: QueueEvent) -> None:
        """Take note of what has happened at once, and do what follows from it.

        Raises:
            UserError: One of it cannot be; then nothing has happened.
            OSError: The disk does not take it; likewise.
        """
        now = self.now()
        try:
            for event in events:
                self.state.handle(event, now)
        except UserError:
            self._load()
            raise
        self._decide()
        self._begin_to_carry_out()

    def now(self) -> float:
        """The queue's clock, which goes on from hub to hub and never back."""
        return self._clock() + self._ahead_seconds

    @property
    def emulations(self) -> Mapping[str, tuple[int, str]]:
        """See `QueueCluster`."""
        return self._cluster.emulations

    def look(self) -> None:
        """See who has ended and what has changed; call it a few times a second.

        Raises:
            OSError: The disk does not take what follows.
        """
        now = self.now()
        events = list(self._ends())
        owners = set(self._owners())
        is_due = now >= self._cluster_at_seconds + CLUSTER_SECONDS
        if is_due or owners != self._seen_owners:
            self._cluster_at_seconds = now
            self._seen_owners = owners
            events += self._news_of_cluster()
        for event in events:
            self.state.handle(event, now)
        if events or now >= self._plan_at_seconds:
            self._decide()
        self._carry_out()

    def process_of(self, name: str) -> JobProcess:
        """The starts of a job."""
        if name not in self._processes:
            self._processes[name] = self._new_process(name, self.kept[name].uid)
        return self._processes[name]

    def _new_process(self, name: str, uid: int) -> JobProcess:
        folder, note = self._files.folder_of(name), self._files.note_of(name)
        return JobProcess(folder, note, uid, self._user_of)

    def is_leaving(self, name: str) -> bool:
        """Whether a job that has ended still has a process."""
        return name in self._leaving

    def decisions(self, name: str) -> list[Mapping[str, object]]:
        """What was decided of a job."""
        return self._store.decisions(int(name))

    def _news_of_cluster(self) -> Iterable[QueueEvent]:
        news = self._cluster.refresh()
        if isinstance(news, ConfigError):
            for line in news.lines:
                logger.warning("%s (the queue goes on with the earlier version)", line)
            return ()
        lost = self._lost_nodes()
        conditions = {
            name: self._condition(device, lost)
            for name, device in self.state.devices.items()
            if name in self._cluster.listed
        }
        changed = [
            DeviceChanged(name, condition)
            for name, condition in conditions.items()
            if condition != self.state.devices[name].condition
        ]
        return [*news, *changed]

    def _condition(self, device: QueueDevice, lost: Collection[str]) -> DeviceCondition:
        """Whether jobs may have a device that is listed."""
        if device.node in lost:
            return "lost"
        if device.node in self._seen_owners:
            return "guest_busy"
        digest = self._cluster.entry_digest(device.device)
        is_failing = self._failing.is_failing(device.device, digest, self.now())
        return "failing" if is_failing else "ready"

    def running(self) -> dict[str, tuple[Path, int]]:
        """Name to the folder of the run and the number of its user, of each job with devices."""
        return {
            name: (self._files.run_of(name), self.kept[name].uid)
            for name, job in self.state.jobs.items()
            if job.devices
        }

    def progressed(self, name: str, facts: ProgressFacts) -> None:
        """A job's driver has told how far it is; the next plan counts with it."""
        job = self.state.jobs.get(name)
        device_of = self._cluster.device_of_entry if facts.failing else {}
        for entry, told in facts.failing.items():  # of nodes of any name and number
            self._ails(name, device_of.get(entry, ""), told)
        if job is not None and facts.idle_seconds is not None:
            self.state.handle(JobIdled(name, facts.idle_seconds), self.now())
        if job is None or not facts.samples_done:
            return
        if facts.model:  # first: what follows is of this model
            self.state.handle(ModelTold(name, facts.model, facts.global_batch_size), self.now())
        for event in news_of(job, facts, self._cluster):
            self.state.handle(event, self.now())

    def _ails(self, name: str, device: str, told: FailingNode) -> None:
        """The guard of a job wants to be rid of a device: it leaves the pool with the next look."""
        if name in self.state.jobs and device in self.state.jobs[name].devices:
            digest, num_devices = self._cluster.entry_digest(device), len(self.state.devices)
            try:
                has_left = self._failing.note(device, digest, told, self.now(), num_devices)
            except OSError as error:
                logger.warning("%s stays, the disk does not take that it ails: %s", device, error)
                return
            if has_left:
                self._cluster_at_seconds = -math.inf

    def _ends(self) -> Iterator[QueueEvent]:
        """What has become of the jobs' processes."""
        unstarted, self._unstarted = self._unstarted, []
        for name in unstarted:
            if name in self.state.jobs:
                yield JobFailed(name, "not_started")
        for name, job in self.state.jobs.items():
            if name in unstarted:
                continue
            attempt = self.kept[name].attempt
            if not attempt:
                continue
            process = self.process_of(name)
            found = process.standing(attempt)
            if found == "absent" and attempt > 1:  # an earlier one was asked to end
                found = process.standing(attempt - 1)
                found = 0 if found == 0 else "absent"
            if found == 0:
                yield JobFinished(name)
            elif job.devices and found not in ("running", "absent"):
                yield JobFailed(name, cause_of(found, is_program=not job.request.is_shrinkable))

    def _decide(self) -> None:
        """Plan, and keep all of it.

        Raises:
            OSError: The disk does not take it; then the state is again what it has.
        """
        now = self.now()
        self._plan_at_seconds = now + PLAN_SECONDS
        decisions = decide(self.state, now)
        for each in decisions:
            if each.kind == "start" and self._is_begun(each.job):
                kept = self.kept[each.job]
                self.kept[each.job] = kept._replace(attempt=kept.attempt + 1)
        forgotten = self._outlived()
        for name in forgotten:
            self.state.forget(name)
        left = [kept for name, kept in self.kept.items() if name not in forgotten]
        try:
            self._store.write(
                self.state.facts, left, [(now, each) for each in decisions], map(int, forgotten)
            )
        except OSError:
            self._load()
            raise
        self.metrics.take(self.state, decisions)
        for name in forgotten:
            del self.kept[name]
            self._processes.pop(name, None)
            self._files.remove(name)
        ended = {name for name in self.state.ended if self.kept[name].attempt}
        self._leaving |= ended & self._processes.keys()
        for each in decisions:
            if each.kind != "end":
                logger.info("job %s: %s: %s", each.job, _in_words(each), each.reason)
        for name in self.state.ended.keys() - self._ended:
            logger.info("job %s: has ended: %s", name, self.state.ended[name].outcome)
        self._ended = set(self.state.ended)

    def _has_process(self, name: str) -> bool:
        attempt = self.kept[name].attempt
        return attempt > 0 and self.process_of(name).standing(attempt) == "running"

    def _is_begun(self, name: str) -> bool:
        """Whether a job's next start needs a number of its own: those before it have all begun."""
        attempt = self.kept[name].attempt
        return not attempt or self.process_of(name).standing(attempt) != "absent"

    def _outlived(self) -> set[str]:
        """The oldest jobs of each user that have ended, beyond those that are still known.

        Counted for each user: nobody loses results by what others submit.
        """
        of_user: dict[int, list[str]] = {}
        for name in self.state.ended:
            of_user.setdefault(self.kept[name].uid, []).append(name)
        if all(len(names) <= MAX_ENDED for names in of_user.values()):
            return set()
        awaited = {name for job in self.state.jobs.values() for name in job.request.after}
        kept = awaited | self._leaving
        found: set[str] = set()
        for names in of_user.values():
            removable = sorted(set(names) - kept, key=int)
            found.update(removable[: max(0, len(names) - MAX_ENDED)])
        return found

    def _begin_to_carry_out(self) -> None:
        """What the disk does not take now is done by the next look, which says so, too."""
        with suppress(OSError):
            self._carry_out()

    def _carry_out(self) -> None:
        """Make what there is what there should be."""
        for name, job in self.state.jobs.items():
            kept = self.kept[name]
            if not kept.attempt:
                continue
            process = self.process_of(name)
            earlier = [n for n in (kept.attempt - 1, kept.attempt) if n > 0]
            if not job.devices:
                for attempt in earlier:
                    process.end(attempt)
                continue
            if name in self._unstarted:
                continue
            try:
                self._have_run(kept, process)
            except (UserError, ValueError) as error:
                logger.warning("job %s cannot be started: %s", name, error)
                self._unstarted.append(name)
        for name in list(self._leaving):
            process, attempt = self.process_of(name), self.kept[name].attempt
            still = [n for n in (attempt - 1, attempt) if process.standing(n) == "running"]
            for each in still:
                process.end(each)
            if not still and process.is_reaped:
                self._leaving.discard(name)

    def _have_run(self, kept: KeptJob, process: JobProcess) -> None:
        """Have a job run on the devices that it has.

        Raises:
            UserError: The machine does not know its user any more.
            ValueError: The system cannot start such a thing.
            OSError: The hub lacks something for a while.
        """
        devices = self.state.jobs[str(kept.number)].devices
        index = kept.submission.array
        variables = {ARRAY_VARIABLE: str(index[0])} if index else {}
        content = self._cluster.nodes_file(devices, variables)
        self._files.write_nodes(str(kept.number), content, process)
        if process.standing(kept.attempt) != "absent":
            return
        if kept.attempt > 1 and process.standing(kept.attempt - 1) == "running":
            process.end(kept.attempt - 1)
            return
        try:
            process.start(kept.attempt, self._files.order(kept))
        except OSError as error:
            if error.errno in OF_THIS_PROCESS:
                raise
            raise ValueError(f"{kept.submission.python}: {error.strerror}") from error


def _in_words(decision: QueueDecision) -> str:
    devices = ", ".join(decision.devices)
    return f"{decision.kind} {devices}" if devices else decision.kind
