"""Errors that end the script on a worker: of the script, or of that worker's machine.

An error of the script comes on all workers, or again on whoever takes the step next. What one
worker alone raises while the others wait for it (a GPU with memory errors, a disk of one node)
costs that worker only; once, as an error that comes again is nobody's bad luck. That the system has
killed a process of a data loader, for want of memory mostly, is: it counts as the loss of a worker,
whose restarts have a budget.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hetero_hvd.driver.ending import JobResult
from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.messages import Crashed

KILLED_LOADER = re.compile(r"DataLoader worker \(pid\S* .*\) (is killed by signal|exited unexpect)")
"""What torch says of it."""


@dataclass(frozen=True, kw_only=True)
class Crash:
    """The script has ended in an error on a worker.

    Attributes:
        host: The worker as a Horovod host.
        told: What it said.
        exit_code: Of the job, should it end by this.
        num_entered: Loops over epochs that the script had begun there: in the last one or after it.
    """

    host: str
    told: Crashed
    exit_code: int
    num_entered: int

    @property
    def kind(self) -> tuple[str, str]:
        """Type of the error and the place in the code where it was raised; no values of data."""
        places = re.findall(r'File "(.*?)", line (\d+)', self.told.traceback)
        place = ":".join(places[-1]) if places else ""
        return self.told.error.partition(":")[0], place

    @property
    def is_bad_luck(self) -> bool:
        """Whether it may come again, there or elsewhere, without a fault of the script."""
        return KILLED_LOADER.search(self.told.error) is not None


class Crashes:
    """Judges errors by what the other members do. Used in the loop's thread only.

    Args:
        slots: The workers; none is started again before its crash is judged.
        membership: Who of them trains.
        console: Is told, with one traceback.
        end: Called when the job is over.
    """

    def __init__(
        self,
        slots: WorkerPool,
        membership: Membership,
        console: Console,
        end: Callable[[JobResult], None],
    ) -> None:
        self._slots = slots
        self._membership = membership
        self._console = console
        self._end = end
        self._open: Crash | None = None
        self._is_over = False
        self._earlier: list[Crash] = []

    def add(self, slot: Slot, told: Crashed, exit_code: int) -> None:
        """The script has ended in an error on a worker.

        Args:
            slot: The worker.
            told: What it said.
            exit_code: Of the job, should it end by this.
        """
        crash = Crash(host=slot.host, told=told, exit_code=exit_code, num_entered=slot.num_entered)
        self.look()  # the others may have met without the one before since the last look
        if self._open is not None:  # no matter how the two differ: it is not one worker's own
            self._conclude(self._open)
        if self._is_over:
            return
        for other in self._slots.all:  # all may fail in the same way: one traceback is enough
            other.output.hold()
        is_known = any(crash.kind == earlier.kind for earlier in self._earlier)
        for line in [] if told.user_error or is_known else told.traceback.rstrip().splitlines():
            self._console.say(line, "problem")
        is_again = any(told.worker == earlier.told.worker for earlier in self._earlier)
        is_over = not self._others and not self._has_another_finished(crash)
        if told.user_error or is_known or is_again or is_over:
            self._conclude(crash)
        else:
            self._open = crash
            self._slots.judged.clear()

    def look(self) -> None:
        """Whether it is clear by now what the other members do. Call it often."""
        crash, others = self._open, {slot.host for slot in self._others}
        if crash is None:
            return
        has_met = crash.host not in self._membership.hosts
        if not others and not self._has_another_finished(crash):
            self._conclude(crash)
        elif has_met or others <= self._membership.rendezvous.waiting:
            self._open = None
            if not crash.is_bad_luck:
                self._earlier.append(crash)
            self._slots.judged.set()
            for slot in self._slots.all:
                if not isinstance(slot.last_word, Crashed):  # its traceback was shown already
                    slot.output.release()
            may_end = others and not crash.is_bad_luck
            again = "; another one there, or the same elsewhere, ends the job" if may_end else ""
            self._console.say(
                f"{crash.told.worker}: {crash.told.error}: only this worker has raised it, so it "
                f"is lost{again}",
                "problem",
            )

    @property
    def _others(self) -> list[Slot]:
        """Members of which nothing says that their scripts have ended."""
        return [slot for slot in self._membership.present if slot.last_word is None]

    def _has_another_finished(self, crash: Crash) -> bool:
        """Whether another member came through the loop there, and has not crashed after it."""
        return any(
            slot.num_finished >= max(1, crash.num_entered)
            for slot in self._membership.present
            if slot.host != crash.host and not isinstance(slot.last_word, Crashed)
        )

    def _conclude(self, crash: Crash) -> None:
        self._open = None
        self._is_over = True
        for slot in self._slots.all:
            slot.output.drop()
        self._console.say(f"{crash.told.worker}: {crash.told.error}", "problem")
        self._end(JobResult(crash.exit_code, f"{crash.told.worker}: {crash.told.error}"))
        self._slots.judged.set()
