"""Whether workers with different software can train together: pure rules over what each says.

What cannot work, and why:
- hetero_hvd: its records refuse fields that they do not know, and all workers must make the same
  decision from the same table;
- Horovod: the negotiation's messages changed from release to release (the local part, `+hetero…`,
  names corrections that do not touch them);
- reduction: Horovod refuses a tensor that is in a GPU's memory here and in the host's there;
- NCCL: it refuses peers of another version (`Mismatched NCCL version detected`, init.cc), but only
  where it is used.
The rest works, with a difference that is worth knowing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hetero_hvd.messages import WorkerId

CUDA = "cuda"
"""Column of what torch was built for: CUDA's version, or ROCm's or oneAPI's with that word."""

COLUMNS = ("hetero_hvd", "horovod", "torch", "python", CUDA, "nccl", "reduction")
"""Of the table, in order; a worker may say nothing of some."""

NCCL = "NCCL"
"""Value of `reduction` where gradients are added up on the GPUs."""

_CONSEQUENCES = {
    "horovod": "a corrected Horovod recovers faster than a stock one; the slower way counts",
    "torch": "results differ in the last bits, and the reproducible mode refuses it",
    "python": "pickled objects and library versions may differ",
    CUDA: "results may differ in the last bits",
    "nccl": "it is not used in this job",
}
_FATAL = {
    "hetero_hvd": "its workers and driver must be of one version",
    "horovod": "its releases do not understand each other",
    "nccl": "NCCL refuses peers of another version",
    "reduction": "Horovod cannot add a tensor in a GPU's memory to one in the host's; install the "
    "same build everywhere, without NCCL if some workers have no GPU",
}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Workers that have something else than most.

    Attributes:
        what: A column.
        workers: Who.
        found: What they have; empty: nothing.
        expected: What most have.
        is_fatal: Whether the job cannot work with them.
        consequence: In words.
    """

    what: str
    workers: tuple[WorkerId, ...]
    found: str
    expected: str
    is_fatal: bool
    consequence: str

    def __str__(self) -> str:
        names = ", ".join(map(str, self.workers))
        verdict = "cannot work" if self.is_fatal else "note"
        found, expected = self.found or "none", self.expected or "none"
        return f"{verdict}: {names}: {self.what} {found}, others {expected}: {self.consequence}"


def compare(
    facts: Mapping[WorkerId, Mapping[str, str]],
    reference: Mapping[WorkerId, Mapping[str, str]] | None = None,
) -> tuple[Mismatch, ...]:
    """Find who differs from most; what is fatal comes first.

    Args:
        facts: Worker to column to version.
        reference: Workers who decide what is normal; default: `facts`. Of equally frequent values
            the earlier worker's counts.
    """
    judges = reference or facts
    return tuple(
        sorted(
            (mismatch for what in COLUMNS for mismatch in _of_column(what, facts, judges)),
            key=lambda mismatch: not mismatch.is_fatal,
        )
    )


def table(facts: Mapping[WorkerId, Mapping[str, str]]) -> list[str]:
    """What each worker has, in the columns that any worker has; lines of text."""
    columns = [what for what in COLUMNS if any(own.get(what) for own in facts.values())]
    rows = [("worker", *columns)]
    for worker, own in facts.items():
        rows.append((str(worker), *(own.get(what) or "-" for what in columns)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _of_column(
    what: str,
    facts: Mapping[WorkerId, Mapping[str, str]],
    judges: Mapping[WorkerId, Mapping[str, str]],
) -> Iterator[Mismatch]:
    if not judges:
        return
    expected = _most(own.get(what, "") for own in judges.values())
    others: dict[str, list[WorkerId]] = {}
    for worker, own in facts.items():
        if own.get(what, "") != expected:
            others.setdefault(own.get(what, ""), []).append(worker)
    is_nccl_used = any(own.get("reduction") == NCCL for own in (*facts.values(), *judges.values()))
    for found, workers in others.items():
        is_fatal = _is_fatal(what, found, expected, is_nccl_used=is_nccl_used)
        yield Mismatch(
            what=what,
            workers=tuple(workers),
            found=found,
            expected=expected,
            is_fatal=is_fatal,
            consequence=(_FATAL if is_fatal else _CONSEQUENCES)[what],
        )


def _is_fatal(what: str, found: str, expected: str, *, is_nccl_used: bool) -> bool:
    if what == "horovod":
        return found.partition("+")[0] != expected.partition("+")[0]
    if what == "nccl":
        return is_nccl_used
    return what in _FATAL


def _most(values: Iterator[str]) -> str:
    """The most frequent one, of equals the first."""
    return Counter(values).most_common(1)[0][0]
