"""What limits a run, from its measured phases: with evidence, expected gain and next step.

Each judgement abstains (`INCOMPLETE`) where one of its inputs was not measured. The measurements
that are judged here are kept by `core.diagnosis.judge`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from hetero_hvd.core.diagnosis.best_shares import best_seconds, best_seconds_in_pieces
from hetero_hvd.core.diagnosis.memory_room import memory_room
from hetero_hvd.core.significant import ratio_in_words
from hetero_hvd.messages import (
    BOUND_BY,
    OWN_PHASES,
    SLOW_BY,
    STEP_PARTS,
    Bound,
    Cause,
    Finding,
    FindingKind,
    Sharing,
    SlowBy,
    StepTiming,
    WorkerId,
)
from hetero_hvd.messages.causes import gain_in_words

BOUND_RATIO = 0.25
"""Part of a step that something must take to be named as what binds the run."""

IMBALANCE_RATIO = 0.1
"""Gain from other shares below this is noise: the balancer does not move for it either."""

SMALLEST_COST_SECONDS, SMALLEST_TOTAL_SECONDS = 0.0005, 0.05
"""Less is shown as 0 ms, or 0.0 s."""

CONTENTION_RATIO = 0.8
"""Waiting for a processor is a part of whatever else takes long: it is named where it is most."""

UNEQUAL_RATIO = 0.9
"""A machine below this part of the fastest one's speed is worth a word, though it is well."""

Rows = Mapping[WorkerId, StepTiming]
"""A mean row of each member that has work."""


@dataclass(kw_only=True)
class Episode:
    """A time in which a worker was slower than it should be.

    Attributes:
        worker: Who.
        since_step: Its first step.
        until_step: The first step after it; None while it lasts.
        speed_ratio: Speed / what it should be, by the newest report.
        cause: As in `StragglerReported`.
        causes: The same.
        first_share: Samples per step when it began; 0: not known.
        num_spells: Of the same kind, if several that are over are told as one.
        until_exchange: Number of the exchange at which it was over, as its judge counts.
        cost_seconds_per_step: By how much a step would be shorter if it were well.
        gain_ratio: By how much faster the job would be then; None: not known.
        cost_seconds: In all.
        charged: Last step of each exchange that was charged, and what it had cost by then.
        is_interrupted: Whether it is over only as far as timings tell, which are missing.
    """

    worker: WorkerId
    since_step: int
    speed_ratio: float
    cause: str
    until_step: int | None = None
    causes: Mapping[str, float] = field(default_factory=dict)
    first_share: int = 0
    num_spells: int = 1
    until_exchange: int = 0
    cost_seconds_per_step: float = math.nan
    gain_ratio: float | None = None
    cost_seconds: float = 0.0
    charged: list[tuple[int, float]] = field(default_factory=list)
    is_interrupted: bool = False


def diagnose(
    rows: Rows,
    episodes: Sequence[Episode] = (),
    *,
    longer_rows: Rows | None = None,
    sharing: Sharing = "planned",
    undivided: int = 1,
) -> list[Finding]:
    """Who is or was slow, what binds the run, and what other shares would gain.

    Args:
        rows: See `Rows`; measured with the present shares.
        episodes: Of workers that were slower than they should be.
        longer_rows: The same over a longer time with similar shares, to judge what binds the run.
        sharing: What decides how much each worker takes.
        undivided: Samples that are never split between workers, >= 1.
    """
    slow = [_straggler(episode, rows, sharing) for episode in episodes]
    loaded = {worker: row for worker, row in rows.items() if row.local_batch_size > 0}
    long = {w: row for w, row in (longer_rows or loaded).items() if row.local_batch_size > 0}
    if sharing == "varying":
        return [*slow, bound(long), memory_room(loaded)]
    balance = _imbalance(loaded, are_fixed=sharing == "fixed", undivided=undivided)
    limit = bound(long)
    if idle := sorted(rows.keys() - loaded.keys(), key=str):
        names = ", ".join(map(str, idle))
        words = f"{balance.words}; no samples for {names}: it would hold up the others"
        balance = msgspec.structs.replace(balance, words=words)
        limit = _without(idle, limit, num_left=len(loaded))
    return [*slow, limit, balance, memory_room(loaded)]


def _without(idle: Sequence[WorkerId], limit: Finding, *, num_left: int) -> Finding:
    """What binds the run, where workers without samples take part in every reduction.

    One worker that is left by itself reduces with nobody, so that it would gain all of that time;
    several would still reduce among each other, and gain at most as much.
    """
    if limit.kind != "communication" or not limit.is_complete:
        return limit
    names = ", ".join(map(str, idle))
    have, take, them = ("has", "takes", "it") if len(idle) == 1 else ("have", "take", "them")
    rest = "; the one that is left would reduce with nobody" if num_left == 1 else ""
    words = f"{limit.words}; {names} {have} no samples, but {take} part in it{rest}"
    what_to_do = f"leave {them} out: hetero-hvd drain {idle[0]}"
    what_to_do += f", likewise {', '.join(map(str, idle[1:]))}" if idle[1:] else ""
    return msgspec.structs.replace(limit, words=words, next_step=what_to_do)


def straggler_cost_seconds(rows: Rows, worker: WorkerId, speed_ratio: float) -> float:
    """By how much a step would be shorter if a worker had its own speed.

    While the shares stay as they are all wait for it. Once the others have taken over a part of its
    work, and all finish together, it costs what they could do instead, with times proportional to
    shares.

    Args:
        rows: See `Rows`.
        worker: Who is slow.
        speed_ratio: Its speed / what it should be.

    Returns:
        Seconds per step, >= 0; NaN if one of the workers was not measured.
    """
    times = {name: row.own_seconds for name, row in rows.items() if row.local_batch_size > 0}
    is_known = all(math.isfinite(seconds) and seconds > 0 for seconds in times.values())
    if worker not in times or not is_known or not math.isfinite(speed_ratio):
        return math.nan
    well = times | {worker: times[worker] * min(1.0, speed_ratio)}
    waiting = max(times.values()) - max(well.values())
    best = best_seconds(rows, times)
    is_balanced = max(times.values()) <= (1 + IMBALANCE_RATIO) * best
    return max(0.0, waiting, best - best_seconds(rows, well) if is_balanced else 0.0)


def _straggler(episode: Episode, rows: Rows, sharing: Sharing) -> Finding:
    worker, cost, is_past = episode.worker, episode.cost_seconds_per_step, False
    what_to_do = _slow_by(episode.cause).advice.format(node=worker.node)
    speed = f"{ratio_in_words(episode.speed_ratio)} of its own speed ({_why(episode)})"
    words = f"{worker} is slow since step {episode.since_step}: {speed}"
    words += (_compensated(episode, rows) if sharing == "planned" else "") + _price(episode)
    evidence = {
        "speed_ratio": episode.speed_ratio,
        "since_step": float(episode.since_step),
        "cost_seconds_per_step": cost,
        "cost_seconds": episode.cost_seconds,
    }
    evidence |= {f"{cause}_ratio": ratio for cause, ratio in episode.causes.items()}
    gain = episode.gain_ratio
    if episode.until_step is not None:
        is_past, gain, what_to_do = True, None, ""
        times = f" {episode.num_spells} times" if episode.num_spells > 1 else ""
        words = f"{worker} was slow{times} from step {episode.since_step} to {episode.until_step}: "
        words += f"{speed}; it cost {episode.cost_seconds:.1f} s in all"
        evidence["until_step"] = float(episode.until_step)
    return Finding(
        kind="straggler",
        is_complete=True,
        worker=worker,
        cause=episode.cause,
        is_past=is_past,
        words=words,
        evidence=evidence,
        max_gain_ratio=gain,
        next_step=what_to_do,
    )


def _slow_by(cause: str) -> SlowBy:
    """What is told of a cause; an earlier version may have recorded one that is not known now."""
    return SLOW_BY.get(cast("Cause", cause), SLOW_BY["unknown"])


def _why(episode: Episode) -> str:
    """The cause in words; of two, what part of the lost time each accounts for."""
    causes = [episode.cause, *(cause for cause in episode.causes if cause != episode.cause)]
    words = [f"{cause}: {_slow_by(cause).words}" for cause in causes]
    if len(words) > 1:
        ratios = [episode.causes.get(cause, math.nan) for cause in causes]
        pairs = zip(words, ratios, strict=True)
        words = [f"{said}, {ratio:.0%} of what it loses" for said, ratio in pairs]
    return "; ".join(words)


def _compensated(episode: Episode, rows: Rows) -> str:
    before = episode.first_share
    now = rows[episode.worker].local_batch_size if episode.worker in rows else before
    if now >= (1 - IMBALANCE_RATIO) * before:
        return ""
    if now == 0:
        return f"; the others have all of its {before} samples now"
    return f"; compensated by a smaller share, {now} samples instead of {before}"


def _price(episode: Episode) -> str:
    """What it costs, or cost until now."""
    cost, total = episode.cost_seconds_per_step, episode.cost_seconds
    if not math.isfinite(cost):
        return f"; it cost {total:.1f} s so far" if total >= SMALLEST_TOTAL_SECONDS else ""
    now = f"it costs {cost * 1e3:.0f} ms a step" if cost >= SMALLEST_COST_SECONDS else ""
    in_all = f"{total:.1f} s in all"
    return (
        f"; {now}, {in_all}" if now else f"; it costs nothing now, as others set the pace, {in_all}"
    )


def bound(rows: Rows) -> Finding:
    """What binds the run.

    The slowest worker sets the pace; reduction is what even the last one to be ready waits.

    Args:
        rows: See `Rows`; of workers that have samples.
    """
    if unmeasured := _unmeasured(rows):
        return _incomplete("compute", f"what binds the run: not measured: {unmeasured}")
    if not rows or min(row.step_seconds for row in rows.values()) <= 0:
        return _incomplete("compute", "what binds the run: no step was measured")
    reduction = min(row.comm_wait_seconds for row in rows.values())
    parts = {name: _parts(row, reduction) for name, row in rows.items()}
    paces = {name: _pace_seconds(row) for name, row in rows.items()}
    gains: dict[Bound, float] = {
        kind: _gain(rows, parts, paces, kind, reduction) for kind in BOUND_BY if kind != "compute"
    }
    longest = max(paces.values())
    setters = [name for name, pace in paces.items() if pace >= longest / (1 + IMBALANCE_RATIO)]
    kind, worker = _named(parts, gains, setters)
    own = parts[worker]
    evidence = {f"{name}_ratio": ratio for name, ratio in own.items()}
    if own[kind] < BOUND_RATIO:
        said = ", ".join(
            f"{name} {ratio:.0%}" for name, ratio in own.items() if f"{ratio:.0%}" != "0%"
        )
        words = f"what binds the run: no part takes {BOUND_RATIO:.0%} of a step on {worker} ({said}"
        words += "); the rest is waiting for others in turn"
        return msgspec.structs.replace(_incomplete("compute", words), evidence=evidence)
    measured = [found[kind] for found in parts.values() if kind in found]
    is_everywhere = min(measured) >= BOUND_RATIO and len(measured) == len(parts)
    where = "every worker" if is_everywhere and len(rows) > 1 else f"{worker}, which sets the pace"
    where = "" if kind == "communication" else f"; on {where}"
    return Finding(
        kind=kind,
        is_complete=True,
        words=f"bound by {kind}: {own[kind]:.0%} of a step is spent {BOUND_BY[kind].words}{where}",
        evidence=evidence,
        max_gain_ratio=gains.get(kind),
        next_step=BOUND_BY[kind].advice,
    )


def _named(
    parts: Mapping[WorkerId, Mapping[Bound, float]],
    gains: Mapping[Bound, float],
    setters: Sequence[WorkerId],
) -> tuple[Bound, WorkerId]:
    """What to name, and on which of those who set the pace it takes most.

    It is what would gain most; computing where nothing else takes a good part of a step that could
    be gained.
    """
    worst = {
        kind: max(setters, key=lambda worker: parts[worker].get(kind, 0.0))
        for kind in (*gains, "compute")
    }
    good = [
        kind
        for kind, gain in gains.items()
        if gain > IMBALANCE_RATIO and parts[worst[kind]].get(kind, 0.0) >= BOUND_RATIO
    ]
    kind: Bound = max(good, key=lambda name: gains[name], default="compute")
    if "contention" in good and gains["contention"] >= CONTENTION_RATIO * gains[kind]:
        kind = "contention"
    return kind, worst[kind]


def _gain(
    rows: Rows,
    parts: Mapping[WorkerId, Mapping[Bound, float]],
    paces: Mapping[WorkerId, float],
    kind: Bound,
    reduction_seconds: float,
) -> float:
    """By how much faster the run would be if that part took no time on any worker."""
    pace = max(paces.values())
    if kind == "communication":
        return reduction_seconds / pace if pace > 0 else math.inf
    left = max(
        paces[name] - parts[name].get(kind, 0.0) * row.step_seconds for name, row in rows.items()
    )
    left += reduction_seconds
    return (pace + reduction_seconds) / left - 1.0 if left > 0 else math.inf


def _unmeasured(rows: Rows) -> str:
    """Whose time is not known, and which part of it; empty: all is known."""
    needed = (*OWN_PHASES, "comm_wait", "step")
    return ", ".join(
        f"{name.replace('_', ' ')} of {worker}"
        for worker, row in rows.items()
        for name in needed
        if not math.isfinite(getattr(row, f"{name}_seconds"))
    )


def _pace_seconds(row: StepTiming) -> float:
    """What others may wait for: all of a step but its own waits. Phases of a device may overlap."""
    return max(row.busy_seconds, row.step_seconds - row.comm_wait_seconds)


def _parts(row: StepTiming, reduction_seconds: float) -> dict[Bound, float]:
    """What a worker's step is made of, as parts of it."""
    evaluation = row.evaluation_seconds if math.isfinite(row.evaluation_seconds) else 0.0
    seconds: dict[Bound, float] = {cause: 0.0 for cause in BOUND_BY if cause != "contention"}
    for part in STEP_PARTS:
        if part.owner == "step":
            seconds[part.cause] += getattr(row, part.column)  # type: ignore[index]
    seconds["script"] = _pace_seconds(row) - row.busy_seconds - evaluation
    seconds["evaluation"] = evaluation
    seconds["communication"] = reduction_seconds
    held_back = row.throttled_seconds if math.isfinite(row.throttled_seconds) else 0.0
    if math.isfinite(row.contention_seconds):  # within the others
        seconds["contention"] = row.contention_seconds - held_back
    return {kind: max(0.0, value) / row.step_seconds for kind, value in seconds.items()}


def _imbalance(rows: Rows, *, are_fixed: bool, undivided: int) -> Finding:
    times = {worker: row.own_seconds for worker, row in rows.items()}
    is_known = all(row.busy_seconds > 0 and math.isfinite(times[w]) for w, row in rows.items())
    if not times or not is_known:
        return _incomplete("imbalance", "balance: not every worker's own time is measured")
    longest, best = max(times.values()), best_seconds(rows, times)
    gain = longest / best - 1.0
    evidence = {"slowest_seconds": longest, "best_seconds": best}
    about = _slowest(rows)
    if gain <= IMBALANCE_RATIO:
        others = f"other shares are {gain_in_words(gain)} faster"
        words = f"well balanced, {others if gain > 0 else 'no other shares are faster'}: "
        words += about or "all do as much in their time"
        return Finding(kind="imbalance", is_complete=True, words=words, evidence=evidence)
    worker = max(times, key=lambda name: times[name])
    in_pieces = best_seconds_in_pieces(rows, times, undivided)
    if not are_fixed and longest / in_pieces - 1.0 <= IMBALANCE_RATIO:
        pieces = "whole samples" if undivided == 1 else f"pieces of {undivided} samples"
        words = f"balanced as far as {pieces} allow: the others wait for {worker}"
        words += f"; finer ones or a larger batch would gain {gain:.0%} at most"
        evidence |= {"best_in_pieces_seconds": in_pieces}
        return Finding(kind="imbalance", is_complete=True, words=words, evidence=evidence)
    if rows[worker].other_seconds >= BOUND_RATIO * times[worker]:
        next_step = f"shorten what the script does on {worker} between steps"
    elif are_fixed:
        next_step = "train with hetero_hvd.Trainer, which gives each worker what it can do"
    else:
        next_step = "let it train longer with balance on, or look at the capacities that limit it"
    return Finding(
        kind="imbalance",
        is_complete=True,
        worker=worker,
        words=f"imbalance left: the others wait for {worker}" + (f"; {about}" if about else ""),
        evidence=evidence,
        max_gain_ratio=gain,
        next_step=next_step,
    )


def _slowest(rows: Rows) -> str:
    """Who does least in its time, in words: that does not mean that it is ill.

    Nor that it is slower: how much of its time does not depend on its share is not known here.
    """
    speeds = {worker: row.local_batch_size / row.busy_seconds for worker, row in rows.items()}
    slowest, fastest = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
    ratio = speeds[slowest] / speeds[fastest]
    if ratio >= UNEQUAL_RATIO:
        return ""
    row = rows[slowest]
    own = {phase: getattr(row, f"{phase}_seconds") for phase in OWN_PHASES}
    phase = max(own, key=own.__getitem__)
    best, num_samples = rows[fastest], sum(r.local_batch_size for r in rows.values())
    return (
        f"{slowest} does {row.local_batch_size} of {num_samples} samples in "
        f"{row.busy_seconds * 1e3:.0f} ms of its own, {own[phase] / row.busy_seconds:.0%} of that "
        f"in {phase.replace('_', ' ')}, {fastest} {best.local_batch_size} in "
        f"{best.busy_seconds * 1e3:.0f} ms"
    )


def _incomplete(kind: FindingKind, words: str) -> Finding:
    return Finding(kind=kind, is_complete=False, words=words)
