"""Whether the workers' software and data fit together, before any of them trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hetero_hvd.core.data.file_sets import differing
from hetero_hvd.core.versions import Mismatch, compare, table
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.errors import JobError
from hetero_hvd.messages import FileSet, Ready, WorkerId


class Compatibility:
    """Compares what ready workers say of their software and their data.

    Args:
        console: Is told each mismatch once.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[str] = set()

    def check_start(self, slots: Iterable[Slot]) -> None:
        """Before the workers that are ready become members.

        Raises:
            JobError: They cannot train together; with the table.
        """
        facts = _facts(slots)
        mismatches = compare(facts)
        if any(mismatch.is_fatal for mismatch in mismatches):
            lines = ["the nodes' software does not fit together:", *table(facts)]
            raise JobError(*lines, *mismatches)
        if self._news(mismatches):
            for line in ("the nodes' software differs:", *table(facts), *map(str, mismatches)):
                self._console.say(line)

    def other_data(self, slots: Iterable[Slot]) -> dict[WorkerId, str]:
        """Which of the ready workers have other files than most, and in what they differ."""
        return differing(_data(slots))

    def why_not(self, worker: WorkerId, ready: Ready, others: Iterable[Slot]) -> str | None:
        """Why a worker cannot join those who are ready; None if it can.

        Differences that do not matter so much are told.
        """
        mismatches = compare({worker: ready.versions}, _facts(others))
        fatal = [mismatch for mismatch in mismatches if mismatch.is_fatal]
        if fatal:
            return str(fatal[0])
        if apart := differing({worker: ready.data}, _data(others)):
            return apart[worker]
        for mismatch in self._news(mismatches):
            self._console.say(str(mismatch))
        return None

    def _news(self, mismatches: Iterable[Mismatch]) -> list[Mismatch]:
        fresh = [mismatch for mismatch in mismatches if str(mismatch) not in self._told]
        self._told.update(map(str, fresh))
        return fresh


def _facts(slots: Iterable[Slot]) -> Mapping[WorkerId, Mapping[str, str]]:
    return {slot.worker: slot.ready.versions for slot in slots if slot.ready is not None}


def _data(slots: Iterable[Slot]) -> Mapping[WorkerId, tuple[FileSet, ...]]:
    return {slot.worker: slot.ready.data for slot in slots if slot.ready is not None}
