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
from pathlib import Path

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.healing import FailureCause
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.queue_events import (
    DeviceChanged,
    JobFailed,
    JobFinished,
    JobMeasured,
    JobProgressed,
    JobSubmitted,
    QueueDecision,
    QueueEvent,
)
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.view.job_progress import ProgressFacts
from hetero_hvd.discovery.submission.queue_link import SubmittedJob
from hetero_hvd.errors import ConfigError
from hetero_hvd.exit_codes import EXIT_KILLED, EXIT_NO_PLACE, EXIT_TERMINATED, EXIT_TRY_AGAIN
from hetero_hvd.hub.queue.job_files import JobFiles
from hetero_hvd.hub.queue.job_process import JobProcess, JobUser, Standing
from hetero_hvd.hub.queue.queue_cluster import QueueCluster
from hetero_hvd.hub.queue.queue_store import KeptJob, QueueStore

logger = logging.getLogger(__name__)

PLAN_SECONDS = 5.0
"""Between two plans without news: limits pass, and back-offs."""

CLUSTER_SECONDS = 1.0
NOISE_RATIO = 0.1
"""A rate that differs by less from what is known is not worth a new plan."""

MAX_ENDED = 1000
"""Jobs that have ended and are still known, with their folders."""

CAUSES: Mapping[Standing, FailureCause] = {
    "lost": "node_lost",
    EXIT_TRY_AGAIN: "node_lost",
    EXIT_NO_PLACE: "preempted",
    EXIT_KILLED: "preempted",
    EXIT_TERMINATED: "preempted",
}
"""What an end tells that nobody here has asked for; any other one is the script's."""


class JobQueue:
    """Used in the loop's thread only.

    Args:
        folder: Of the hub's store.
        cluster: The devices.
        now: Seconds by the hub's clock, which goes on from hub to hub.
        user_of: As whom a user's jobs run, by number; None: as this process.
        lost_nodes: Names of nodes of which nothing is heard any more.

    Attributes:
        state: What the policy knows.
        kept: Name to job, of all that are known.

    Raises:
        JobError: What was kept is damaged.
        OSError: The disk does not give it.
    """

    def __init__(
        self,
        folder: Path,
        cluster: QueueCluster,
        now: Callable[[], float],
        user_of: Callable[[int], JobUser | None],
        lost_nodes: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._files = JobFiles(folder / "queue")
        self._store = QueueStore(folder)
        self._cluster = cluster
        self._now = now
        self._user_of = user_of
        self._lost_nodes = lost_nodes
        self._processes: dict[str, JobProcess] = {}
        self._plan_at_seconds = 0.0
        self._cluster_at_seconds = 0.0
        self.kept: dict[str, KeptJob] = {}
        self._leaving: set[str] = set()
        self._load()
        self._files.remove_unknown(self.kept)

    def _load(self) -> None:
        """Take what is on the disk, in the place of whatever is here."""
        jobs = self._store.jobs()
        devices = {each.device: each for each in self._cluster.devices}
        had = {device for kept in jobs for device in kept.job.devices}
        gone = sorted(had - devices.keys())
        away = [QueueDevice(device=name, kind="gone", node="gone") for name in gone]
        self.state = QueueState([*devices.values(), *away])
        self.kept = {str(each.number): each for each in jobs}
        if (facts := self._store.facts()) is not None:
            self.state.put_back(facts, [each.job for each in jobs])
        for name in gone:
            self.state.handle(DeviceChanged(name, "lost"), self._now())
        self._leaving = {name for name in self.state.ended if self.kept[name].attempt}

    @property
    def next_number(self) -> int:
        """Of the next job."""
        return max((each.number for each in self.kept.values()), default=0) + 1

    def submit(self, request: JobRequest, submission: SubmittedJob, uid: int, tree: bytes) -> None:
        """Take a job in, and start it if devices are free for it.

        Raises:
            UserError: It can never run.
            OSError: The disk does not take it; then it is not there.
        """
        name, number = request.job, int(request.job)
        process = JobProcess(self._files.folder_of(name), self._user_of(uid))
        self.state.handle(JobSubmitted(request), self._now())
        try:
            process.make(tree)
            self.kept[name] = KeptJob(number, uid, 0, self.state.jobs[name], submission)
            self._decide()
        except OSError:
            self._load()
            self._files.remove(name)
            raise
        self._processes[name] = process
        self._carry_out()

    def happened(self, event: QueueEvent) -> None:
        """Take note of something, and do what follows from it.

        Raises:
            UserError: It cannot be.
            OSError: The disk does not take it; then it has not happened.
        """
        self.state.handle(event, self._now())
        self._decide()
        self._carry_out()

    def look(self) -> None:
        """See who has ended and what has changed; call it a few times a second.

        Raises:
            OSError: The disk does not take what follows.
        """
        now = self._now()
        events = list(self._ends())
        if now >= self._cluster_at_seconds + CLUSTER_SECONDS:
            self._cluster_at_seconds = now
            events += self._news_of_cluster()
        for event in events:
            self.state.handle(event, now)
        if events or now >= self._plan_at_seconds:
            self._decide()
        self._carry_out()

    def process_of(self, name: str) -> JobProcess:
        """The starts of a job."""
        if name not in self._processes:
            user = self._user_of(self.kept[name].uid)
            self._processes[name] = JobProcess(self._files.folder_of(name), user)
        return self._processes[name]

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
        lost = set(self._lost_nodes())
        listed = {each.device for each in self._cluster.devices}
        changed = [
            DeviceChanged(name, "lost" if device.node in lost else "ready")
            for name, device in self.state.devices.items()
            if name in listed and device.condition == ("ready" if device.node in lost else "lost")
        ]
        return [*news, *changed]

    def running(self) -> dict[str, Path]:
        """Name to the folder of the run, of each job that has devices."""
        return {
            name: self._files.run_of(name) for name, job in self.state.jobs.items() if job.devices
        }

    def progressed(self, name: str, facts: ProgressFacts) -> None:
        """A job's driver has told how far it is; the next plan counts with it."""
        job = self.state.jobs.get(name)
        if job is None or not facts.samples_done:
            return
        now, request = self._now(), job.request
        rates = dict(request.rates)
        for kind, rate in self._cluster.by_kind(facts.rates).items():
            if abs(rates.get(kind, 0.0) / rate - 1.0) > NOISE_RATIO:
                rates[kind] = rate
        left = facts.samples_left
        work = math.nan if left is None else facts.samples_done + left
        self.state.handle(JobProgressed(name, facts.samples_done), now)
        if rates != request.rates or str(work) != str(request.work):  # NaN is unlike itself
            self.state.handle(JobMeasured(name, work, rates), now)

    def _ends(self) -> Iterator[QueueEvent]:
        """What has become of the jobs' processes."""
        for name, job in self.state.jobs.items():
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
                yield JobFailed(name, CAUSES.get(found, "script_error"))

    def _decide(self) -> None:
        """Plan, and keep all of it.

        Raises:
            OSError: The disk does not take it; then the state is again what it has.
        """
        now = self._now()
        self._plan_at_seconds = now + PLAN_SECONDS
        decisions = decide(self.state, now)
        for each in decisions:
            if each.kind == "start":
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
        for name in forgotten:
            del self.kept[name]
            self._processes.pop(name, None)
            self._files.remove(name)
        ended = {name for name in self.state.ended if self.kept[name].attempt}
        self._leaving |= ended & self._processes.keys()
        for each in decisions:
            logger.info("job %s: %s: %s", each.job, _in_words(each), each.reason)

    def _outlived(self) -> set[str]:
        """The oldest jobs that have ended, beyond those that are still known."""
        awaited = {name for job in self.state.jobs.values() for name in job.request.after}
        names = sorted(self.state.ended.keys() - awaited - self._leaving, key=int)
        return set(names[: max(0, len(self.state.ended) - MAX_ENDED)])

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
            self._files.write_nodes(name, self._cluster.nodes_file(job.devices), process.user)
            if process.standing(kept.attempt) != "absent":
                continue
            if kept.attempt > 1 and process.standing(kept.attempt - 1) == "running":
                process.end(kept.attempt - 1)
                continue
            self._start(kept, process)
        for name in list(self._leaving):
            process, attempt = self.process_of(name), self.kept[name].attempt
            if process.standing(attempt) == "running":
                process.end(attempt)
            elif process.is_reaped:
                self._leaving.discard(name)

    def _start(self, kept: KeptJob, process: JobProcess) -> None:
        try:
            process.start(kept.attempt, self._files.order(kept))
        except OSError as error:
            logger.warning("job %d cannot be started: %s", kept.number, error)
            self.state.handle(JobFailed(str(kept.number), "script_error"), self._now())


def _in_words(decision: QueueDecision) -> str:
    devices = ", ".join(decision.devices)
    return f"{decision.kind} {devices}" if devices else decision.kind
