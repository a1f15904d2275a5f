"""`hetero-hvd compare`: the first step at which two runs differ, from their fingerprints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.kept_file import older

FILE = "fingerprints.jsonl"
MADE_BY = "fingerprints are kept by hetero-hvd run --reproducible"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One result in a line.

    Attributes:
        step: Applied steps.
        number: Which evaluation after that step, from 1.
        metrics: Name to mean; None if it was not finite.
    """

    step: int
    number: int
    metrics: dict[str, float | None]


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a run's fingerprints.jsonl.

    Attributes:
        epoch: Epoch under way.
        step: Applied steps.
        is_epoch: Whether the epoch is over.
        fingerprint: Digest of all parts.
        loss: Of the last step; None if it was not finite.
        parts: Name of the part to its digest.
        numerics: What the bits depend on beside the script.
        evaluations: Since the line before.
    """

    epoch: int
    step: int
    is_epoch: bool
    fingerprint: str
    loss: float | None
    parts: dict[str, str]
    numerics: str
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Attributes:
        are_equal: Whether all that both runs recorded is the same.
        lines: In words.
    """

    are_equal: bool
    lines: tuple[str, ...]


def compare(first: Path, second: Path) -> Comparison:
    """Compare two runs at the steps of which both have a fingerprint.

    Args:
        first: Output folder of a run, or its fingerprints.jsonl.
        second: The other one.

    Raises:
        JobError: A file cannot be read, or the runs have no step in common.
    """
    one, other = _read(first), _read(second)
    common = sorted(one.keys() & other.keys())
    if not common:
        raise JobError(f"{first} and {second} have no step in common")
    results = tuple(_different_results(one, other))
    before = None
    for key in common:
        if one[key].fingerprint != other[key].fingerprint:
            lines = _difference(before, one[key], other[key])
            return Comparison(False, (*lines, *(f"  {line}" for line in results)))
        before = key
    if results:
        return Comparison(False, results)
    last = one[common[-1]]
    line = f"equal: {len(common)} fingerprints, the last after {_place(last)}"
    return Comparison(True, (line,))


def _difference(
    before: tuple[int, bool] | None, one: Fingerprint, other: Fingerprint
) -> Iterator[str]:
    names = [n for n in one.parts if one.parts[n] != other.parts.get(n)] or sorted(other.parts)
    yield f"different after {_place(one)}: {', '.join(names)}"
    yield f"  loss {_number(one.loss)} and {_number(other.loss)}"
    if before is None:
        yield "  no earlier fingerprint of both runs is equal"
    else:
        yield f"  equal until step {before[0]}"
    steps = one.step - (before[0] if before else 0)
    if steps > 1:
        yield "  to find the step: run both again with --fingerprint-steps 1"
    facts, others = one.numerics.split("; "), other.numerics.split("; ")
    changed = [(fact, also) for fact, also in zip(facts, others, strict=False) if fact != also]
    for fact, also in changed:
        yield f"  the first ran with {fact}, the second with {also}"


def _different_results(
    one: Mapping[tuple[int, bool], Fingerprint], other: Mapping[tuple[int, bool], Fingerprint]
) -> Iterator[str]:
    """The first evaluation whose result differs, in words."""
    found, others = (
        {(e.step, e.number): e.metrics for line in run.values() for e in line.evaluations}
        for run in (one, other)
    )
    for step, number in sorted(found.keys() & others.keys()):
        mine, theirs = found[step, number], others[step, number]
        names = [name for name in mine if mine[name] != theirs.get(name)]
        for name in names:
            values = f"{_number(mine[name])} and {_number(theirs.get(name))}"
            yield f"evaluation {number} after step {step} differs: {name} {values}"
        if names:
            return


def _place(found: Fingerprint) -> str:
    where = f"epoch {found.epoch}" if found.is_epoch else f"a step of epoch {found.epoch}"
    return f"step {found.step} ({where})"


def _number(loss: float | None) -> str:
    return repr(math.nan if loss is None else loss)


def _read(path: Path) -> dict[tuple[int, bool], Fingerprint]:
    """By step; what a run wrote twice, because a fault came between, must be the same."""
    file = path / FILE if path.is_dir() else path
    try:
        lines = file.read_bytes().splitlines()
        if (before := older(file)).is_file():
            lines = before.read_bytes().splitlines() + lines
    except OSError as error:
        raise JobError(f"{file}: {error.strerror}; {MADE_BY}") from error
    found: dict[tuple[int, bool], Fingerprint] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = msgspec.convert(json.loads(line), Fingerprint)
        except (ValueError, msgspec.ValidationError) as error:
            if number == len(lines):  # a torn tail is what a killed run leaves
                break
            raise JobError(f"{file}:{number}: {error}") from error
        known = found.setdefault((entry.step, entry.is_epoch), entry)
        if known.fingerprint != entry.fingerprint:
            raise JobError(f"{file}:{number}: differs from an earlier line about the same step")
    return found
