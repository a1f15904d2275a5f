"""The largest model that three unequal memories hold, with the optimizer's state in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.numbers import Number
from benchmarks.sharding.control_groups import WorkerGroups, worker_groups
from benchmarks.sharding.jobs import DeepJob
from benchmarks.sharding.trainings import run, trained
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.core.shards.cut import COPIES
from hetero_hvd.errors import JobError

RATIO = (24, 12, 8)
UNIT_BYTES = 32 * 2**20
WIDTH = 512
PRECISION = 0.02
NUM_STEPS = 10
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """How the numbers of a model are kept.

    Attributes:
        title: In words.
        dtype: As in `DeepJob`.
        fixed: Bytes of each parameter that every worker has: it, its gradient, and what travels.
        state: Bytes of the optimizer for each parameter.
        goal: Least ratio of the largest models with and without parts.
        guess: Part of the arithmetic at which a search begins.
    """

    title: str
    dtype: str
    fixed: int
    state: int
    goal: float
    guess: float

    def largest(self, rooms: Sequence[float]) -> float:
        """Parameters that fit without parts, by arithmetic."""
        return min(rooms) / (self.fixed + self.state)

    def largest_in_parts(self, rooms: Sequence[float]) -> float:
        """Parameters that fit with two holders of each part, by arithmetic."""

        def fits(n: float) -> bool:
            left = [room - self.fixed * n for room in rooms]
            held = sum(min(self.state * n, each) for each in left)
            return min(left) >= 0 and held >= 2 * self.state * n

        low, high = 0.0, min(rooms) / self.fixed
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


KINDS = (
    Numbers(title="float32, AdamW", dtype="float32", fixed=8, state=8, goal=1.55, guess=0.95),
    Numbers(
        title="bfloat16, AdamW with float32 masters",
        dtype="bfloat16",
        fixed=4,
        state=12,
        goal=1.85,
        guess=0.84,
    ),
)


def largest_model(groups: WorkerGroups, kind: Numbers, say: Say) -> Table:
    """Search with and without parts."""
    table = Table(
        title=f"The largest model that three memories hold, with the state in parts: {kind.title}",
        text="Three workers in control groups whose memory is that of a worker with almost no "
        f"model and 24 : 12 : 8 times {UNIT_BYTES // MIB} MiB beside it. The largest model of "
        f"layers of {WIDTH} x {WIDTH} that takes {NUM_STEPS} steps, with each part on two workers, "
        "found by bisection to "
        f"{PRECISION:.0%}. Arithmetic: as if nothing but parameters, gradients and state took "
        "memory. What is freed goes back to the system at once (MALLOC_MMAP_THRESHOLD_), and "
        "Gloo's traffic does not leave the machine.",
        columns=("MiB without a model", "without parts", "in parts", "ratio", "arithmetic"),
    )
    search = Search(groups, kind, table, say)
    found = {shards: search.largest(shards=shards) for shards in (False, True)}
    ratio = found[True] / found[False]
    arithmetic = kind.largest_in_parts(search.rooms) / kind.largest(search.rooms)
    cells = [f"{found[shards] * WIDTH**2 / 1e6:.1f} million" for shards in (False, True)]
    table.rows.append((f"{search.base / MIB:.0f}", *cells, f"{ratio:.2f}", f"{arithmetic:.2f}"))
    table.numbers.append(
        Number(
            quantity=f"largest model in parts / without, memories 24 : 12 : 8: {kind.title}",
            goal=f">= {kind.goal:g}",
            found=f"{ratio:.2f}",
            is_reached=ratio >= kind.goal,
        )
    )
    return table


def sharding(_: Effort, say: Say) -> Iterator[Table]:
    """State in parts: the largest model that three unequal memories hold."""
    with worker_groups(len(RATIO)) as groups:
        for kind in reversed(KINDS):
            yield largest_model(groups, kind, say)


class Search:
    """Tries sizes of models in groups whose limits it sets.

    Args:
        groups: Of the workers.
        kind: How numbers are kept.
        table: Keeps what was tried.
        say: For progress.

    Attributes:
        kind: As above.
        base: Bytes of a worker with almost no model.
        rooms: Bytes beside these, of each worker.
    """

    def __init__(self, groups: WorkerGroups, kind: Numbers, table: Table, say: Say) -> None:
        self.kind = kind
        self._groups = groups
        self._table = table
        self._say = say
        groups.limit_memory([-1] * len(RATIO))
        tiny = DeepJob(width=WIDTH, depth=1, num_steps=NUM_STEPS, dtype=kind.dtype)
        self.base = max(each.own_bytes for each in trained(groups, tiny))
        self.rooms = [part * UNIT_BYTES for part in RATIO]
        say(f"{kind.title}: {self.base / MIB:.0f} MiB with almost no model")

    def largest(self, *, shards: bool) -> int:
        """Layers of the largest model.

        Args:
            shards: Whether the optimizer's state lies in parts.
        """
        self._groups.limit_memory([self.base + room for room in self.rooms])
        bound = (self.kind.largest_in_parts if shards else self.kind.largest)(self.rooms)
        try:
            return largest(
                lambda depth: self._fits(depth, shards), round(self.kind.guess * bound / WIDTH**2)
            )
        finally:
            self._groups.limit_memory([-1] * len(RATIO))

    def _fits(self, depth: int, shards: bool) -> bool:
        job = DeepJob(
            width=WIDTH, depth=depth, num_steps=NUM_STEPS, dtype=self.kind.dtype, shards=shards
        )
        outcome = run(self._groups, job)
        # Beyond that one worker may hold everything alone, of which no second copy is left.
        is_whole = all(each.num_copies == COPIES for each in outcome.results)
        words = outcome.words
        if shards and words == "trained" and not is_whole:
            words = "trained with one copy"
        peaks = ", ".join(f"{each / MIB:.0f}" for each in outcome.peaks)
        how = "in parts" if shards else "without parts"
        self._say(f"{self.kind.title}, {how}, {depth} layers: {words}, at most {peaks} MiB")
        self._table.raw.append(
            {
                "numbers": self.kind.title,
                "shards": shards,
                "depth": depth,
                "outcome": words,
                "base_bytes": self.base,
                "peak_bytes": outcome.peaks,
            }
        )
        return words == "trained"


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """The largest number that fits, to `PRECISION` or to 1.

    Args:
        fits: Whether one does; all that are smaller do then.
        guess: Where to begin, >= 1.

    Raises:
        JobError: Not even 1 does.
    """
    low = high = 0
    number = max(1, guess)
    while not (low and high and high - low <= max(1, PRECISION * low)):
        if fits(number):
            low = number
        else:
            high = number
        if high == 1:
            raise JobError("not even the smallest model can be trained")
        if not high:
            number = max(low + 1, round(1.08 * low))
        elif not low:
            number = min(high - 1, max(1, round(0.92 * high)))
        else:
            number = (low + high) // 2
    return low
