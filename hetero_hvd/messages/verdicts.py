"""What limits a run: judged once, by `core.diagnosis.judge`, and only shown by everybody else."""

from __future__ import annotations

import msgspec

from hetero_hvd.messages.causes import FindingKind
from hetero_hvd.messages.identity import Message, WorkerId


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judgement about a run.

    Attributes:
        kind: What it is about.
        is_complete: False where it abstains, because something was not measured.
        words: The judgement for people.
        worker: Whom it is about, if it is about one.
        cause: Of a straggler: as in `StragglerReported`.
        is_past: It is over.
        evidence: The numbers behind it; names end in their unit.
        max_gain_ratio: Throughput could grow by at most this part; None: not known.
        next_step: What to do, if anything.
    """

    kind: FindingKind
    is_complete: bool
    words: str
    worker: WorkerId | None = None
    cause: str = ""
    is_past: bool = False
    evidence: dict[str, float] = {}
    max_gain_ratio: float | None = None
    next_step: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether something could be gained."""
        return self.is_complete and not self.is_past and bool(self.max_gain_ratio)

    def __str__(self) -> str:
        gain = f"; up to {self.max_gain_ratio:.0%} faster" if self.max_gain_ratio else ""
        step = f". Next: {self.next_step}" if self.next_step else ""
        return f"{'' if self.is_complete else 'INCOMPLETE: '}{self.words}{gain}{step}"


class Judged(Message, frozen=True):
    """What limits the run has changed, or the run is about to end.

    Attributes:
        step: Last step that it is based on.
        findings: The whole judgement.
    """

    step: int
    findings: tuple[Finding, ...]
