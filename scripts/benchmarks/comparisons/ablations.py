"""What each option of training is worth on the examples' models, and what the division of a batch.

Options are tried one at a time around a plain training, and in those pairs that touch each other;
all in the same processes, over the same samples in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Any

from benchmarks.comparisons.example_runs import (
    BATCH,
    EXAMPLES,
    MOST_OVERRUN,
    PRICES,
    Example,
    Place,
    emulated,
    hosts_with_quotas,
)
from benchmarks.numbers import Number
from benchmarks.peers import EVEN, Run
from benchmarks.tables import (
    EPOCH_STEPS,
    Effort,
    Say,
    Table,
    load_variance,
    median_of,
    second_half_seconds,
)
from hetero_hvd.errors import JobError
from tests.kit.virtual_cluster import missing_for_a_cluster

WARM_UP, BASE = "warm-up", "plain: fp32, each batch a step"
BF16 = {"flags": ["--precision", "bf16"]}
ACCUMULATED = {"flags": ["--accumulate", "4"]}
FP16: dict[str, Any] = {"options": {"compression": "fp16"}}
FEEDBACK: dict[str, Any] = {"options": {"compression": "fp16-feedback"}}
STALE: dict[str, Any] = {"job": {"staleness_bound": 1, "staleness_warmup_steps": 1}}
SMALL: dict[str, Any] = {"options": {"micro_batch_size": 7}}
SINGLE: dict[str, dict[str, Any]] = {
    WARM_UP: {},  # what processes do for the first time is not compared
    BASE: {},
    "bf16": BF16,
    "accumulation over 4 batches": ACCUMULATED,
    "fp16 on the wire": FP16,
    "fp16 with error feedback": FEEDBACK,
    "staleness 1": STALE,
    "micro-batches of 7": SMALL,
}
PAIRS: dict[str, dict[str, Any]] = {
    "bf16, fp16 with error feedback": BF16 | FEEDBACK,
    "accumulation, fp16 with error feedback": ACCUMULATED | FEEDBACK,
    "accumulation, staleness 1": ACCUMULATED | STALE,
    "staleness 1, fp16 with error feedback": STALE | FEEDBACK,
    "accumulation, micro-batches of 7": ACCUMULATED | SMALL,
    "bf16, accumulation": {"flags": [*BF16["flags"], *ACCUMULATED["flags"]]},
    "bf16, staleness 1": BF16 | STALE,
    "bf16, micro-batches of 7": BF16 | SMALL,
    "fp16 with error feedback, micro-batches of 7": {
        "options": FEEDBACK["options"] | SMALL["options"]
    },
    "staleness 1, micro-batches of 7": STALE | SMALL,
}
AT_LAST: dict[str, dict[str, Any]] = {
    "plain, once more": {},
    "wait-free": {"job": {"mode": "wait_free"}},
}
"""What chance does to a speed; and a way in which a script that counts its steps may break."""

WHY = (
    "All pairs of these, as each may touch the other: bf16 and fp16 both round a gradient; "
    "accumulation and fp16 both save traffic; accumulation makes a stale gradient older by "
    "samples, feedback adds to it what an older one lost; micro-batches cut what accumulation "
    "has put together."
)
WAY_COLUMNS = (
    "way",
    "samples/s",
    "speed",
    "loss after equal samples",
    "bytes in a step",
    "bytes for a sample",
    "cost of a million samples",
)
FEWEST_STEPS = 4
LAST_PART = 6
"""The loss is that of the last of so many parts of the steps."""

PEERS = {"uniform": "uniform", "static": "static", "ours": "adaptive"}
"""Ways to divide a batch, as rules of the launcher and as they are called here."""

SHARE_COLUMNS = (
    "model",
    "shares",
    "samples/s",
    "of static",
    "seconds per epoch",
    "load variance",
    "cost per epoch",
)
GOAL = 0.9

FAILED = "failed"
UNFIT = "the compute did not fit into the emulated time"
"""Why a run has no figure."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a way to train has come to.

    Attributes:
        samples_per_second: Of all workers, after the first third of the steps.
        loss: Mean of the last steps.
        bytes_per_step: That each worker gives to reductions.
        bytes_per_sample: The same for a sample of the step.
    """

    samples_per_second: float
    loss: float
    bytes_per_step: float
    bytes_per_sample: float

    @classmethod
    def of(cls, seen: Mapping[str, Any], num_samples: int) -> Found:
        """From what a worker saw of an epoch.

        Args:
            seen: Fields of `workloads.examples.Seen`.
            num_samples: Of the epoch.

        Raises:
            JobError: There are too few steps.
        """
        ends, sizes, losses = seen["ended_at_seconds"], seen["num_bytes"], seen["losses"]
        num_steps = len(ends)
        if num_steps < FEWEST_STEPS:
            raise JobError(f"{num_steps} steps are too few to tell anything")
        # With staleness, the first is late, and at the end what is under way comes at once.
        settled = ends[max(1, num_steps // 3) : -1]
        seconds = median(after - before for before, after in pairwise(settled))
        per_step = (sizes[-1] - sizes[0]) / (num_steps - 1)
        samples = num_samples / num_steps
        return cls(
            samples_per_second=samples / seconds,
            loss=mean(losses[-max(1, num_steps // LAST_PART) :]),
            bytes_per_step=per_step,
            bytes_per_sample=per_step / samples,
        )


def ablations(effort: Effort, say: Say) -> Iterator[Table]:
    """Options and shares on each example: on emulated workers, and on unequal CPUs."""
    with ExitStack() as stack:
        places: list[tuple[Place, tuple[Example, ...]]] = [(emulated(), EXAMPLES)]
        if missing := missing_for_a_cluster():
            say(f"no virtual hosts, so emulated workers only: {missing}")
        else:
            is_quick = effort.repeats == 1
            chosen = [each for each in EXAMPLES if not is_quick or each.script == "gpt2"]
            places.append((stack.enter_context(hosts_with_quotas()), tuple(chosen)))
        for place, examples in places:
            for example in examples:
                if options_title(place, example) not in effort.done:
                    yield _options(place, example, effort, say)
            if shares_title(place.title) not in effort.done:
                yield _shares(place, examples, effort, say)


def _options(place: Place, example: Example, effort: Effort, say: Say) -> Table:
    """Every way once in each turn; a turn that fails is told, and the others count."""
    num_samples = BATCH * num_batches(effort)
    title = f"{example.title} on {place.title}"
    ways = ways_of(effort)
    turns: list[dict[str, dict[str, Any]]] = []
    failures: list[str] = []
    for turn in range(num_turns := max(1, effort.repeats // 2)):
        say(f"{title}: {len(ways)} ways, {turn + 1} of {num_turns}")
        try:
            seen, _ = place.run(example, ways, num_samples, "static")
            del seen[WARM_UP]
            Found.of(seen[BASE], num_samples)
        except JobError as error:
            say(f"{title}: failed, {error}")
            failures.append(_first_line(error))
        else:
            turns.append(seen)
    table = options_table(title, place.about, turns, num_samples)
    for failure in failures:
        table.rows.append(("a turn", *[f"failed: {failure}"] * (len(WAY_COLUMNS) - 1)))
        table.is_whole = False
    for row in table.rows:
        say(f"{title}: {', '.join(row[:4])}")
    return table


def _first_line(error: Exception) -> str:
    """As a cell of a table."""
    return next(iter(str(error).splitlines()), "").replace("|", "/")


def options_title(place: Place, example: Example) -> str:
    """Of a model's options at a place."""
    return f"Options: {example.title} on {place.title}"


def shares_title(place: str) -> str:
    """Of the division of a batch at a place."""
    return f"Shares: {place}"


def ways_of(effort: Effort) -> dict[str, dict[str, Any]]:
    """Name to fields of `workloads.examples.Way`; in a quick run without the pairs."""
    return SINGLE | (PAIRS if effort.repeats > 1 else {}) | AT_LAST


def num_batches(effort: Effort) -> int:
    """Of each way; a multiple of those that are accumulated."""
    return 48 if effort.repeats > 1 else 20


def options_table(
    title: str,
    about: str,
    turns: Sequence[Mapping[str, Mapping[str, Any]]],
    num_samples: int,
) -> Table:
    """What the ways come to beside the plain one.

    Args:
        title: Of model and place.
        about: The place.
        turns: Name of a way to fields of `workloads.examples.Seen`; the same ways in each.
        num_samples: Of the epoch that each trains.

    Raises:
        JobError: The plain way has no steps.
    """
    seen = turns[0] if turns else {}
    table = Table(
        title=f"Options: {title}",
        text=f"{about}; the true speeds divide it. {num_samples} samples in each way, in the same "
        f"order, at the same learning rate; {WAY_COLUMNS[1]} after the first third, the training "
        "loss of the last sixth. Bytes are those that a worker gives to reductions, gradients and "
        f"the rest. Prices {', '.join(f'{price:g}' for price in PRICES)} an hour. What Hugging "
        "Face's adapter has no argument for (compression, micro-batches) is given to the trainer "
        "beneath it." + (f" {WHY}" if PAIRS.keys() & seen.keys() else ""),
        columns=WAY_COLUMNS,
    )
    plain = [Found.of(turn[BASE], num_samples) for turn in turns]
    reasons: dict[str, list[str]] = defaultdict(list)
    for way, each in seen.items():
        refused = next((turn[way]["refused"] for turn in turns if turn[way]["refused"]), "")
        if refused:
            word = "refused" if refused.startswith("UserError") else "breaks"
            table.rows.append((way, *[word] * (len(WAY_COLUMNS) - 1)))
            reasons[refused.splitlines()[0]].append(way)
            continue
        found = [Found.of(turn[way], num_samples) for turn in turns]
        table.rows.append((way, *_way_cells(found, plain)))
        table.measured[way] = _speeds(found, plain)
        table.raw.append({"way": way, "losses": each["losses"]})
    table.text += "".join(f" {'; '.join(ways)}: {reason}." for reason, ways in reasons.items())
    return table


def _speeds(found: Sequence[Found], plain: Sequence[Found]) -> list[float]:
    """Beside the plain way of the same turn."""
    pairs = zip(found, plain, strict=True)
    return [each.samples_per_second / base.samples_per_second for each, base in pairs]


def _way_cells(found: Sequence[Found], plain: Sequence[Found]) -> Iterator[str]:
    """Medians of the turns; of the speed also the range, where there are several."""
    rate, speeds = median(each.samples_per_second for each in found), _speeds(found, plain)
    losses = [each.loss / base.loss - 1 for each, base in zip(found, plain, strict=True)]
    yield f"{rate:.0f}"
    yield f"{speeds[0]:.2f} x" if len(speeds) == 1 else median_of(speeds, "{:.2f} x")
    yield f"{median(each.loss for each in found):.4f} ({median(losses):+.1%})"
    yield f"{median(each.bytes_per_step for each in found):.0f}"
    yield f"{median(each.bytes_per_sample for each in found):.0f}"
    yield f"{1e6 / rate / 3600 * sum(PRICES):.3f}"


def _shares(place: Place, examples: Sequence[Example], effort: Effort, say: Say) -> Table:
    """Every division of the batch on every model, in turns."""
    runs: dict[tuple[str, str], list[Run | str]] = defaultdict(list)
    num_turns = max(1, effort.repeats // 2)  # each is a run for every model and division
    for turn in range(num_turns):
        for example in examples:
            for peer, shares in PEERS.items():
                whole = effort.num_even_steps if peer in EVEN else effort.num_steps
                where = f"{place.title}, {turn + 1} of {num_turns}"
                try:
                    _, run = place.run(example, {BASE: {}}, BATCH * max(12, whole // 2), peer)
                except JobError as error:
                    say(f"{example.title}, {shares} shares, {where}: failed, {error}")
                    runs[example.title, peer].append(FAILED)
                    continue
                rate, overrun = BATCH / second_half_seconds(run), place.overrun(run)
                is_fit = overrun <= MOST_OVERRUN
                runs[example.title, peer].append(run if is_fit else UNFIT)
                told = f"{rate:.0f} samples/s" if is_fit else f"{UNFIT}: {overrun:.2f} of it"
                say(f"{example.title}, {shares} shares, {where}: {told}")
    return shares_table(place.title, place.about, runs)


def shares_table(
    title: str, about: str, runs: Mapping[tuple[str, str], Sequence[Run | str]]
) -> Table:
    """Uniform, static and adaptive shares beside each other.

    Args:
        title: Of the place.
        about: The place.
        runs: Model and rule to a run for each turn, or why it has no figure.
    """
    table = Table(
        title=shares_title(title),
        text=f"{about}. `static` has the true speeds, `adaptive` starts without knowledge. Second "
        f"half of each run; an epoch has {EPOCH_STEPS * BATCH} samples. The load variance is the "
        "variation of the workers' own times in a step. Ratios are taken within a turn.",
        columns=SHARE_COLUMNS,
    )
    for (model, peer), each in runs.items():
        pairs = list(zip(each, runs[model, "static"], strict=True))
        both = [
            (own, known) for own, known in pairs if isinstance(own, Run) and isinstance(known, Run)
        ]
        table.is_whole &= len(both) == len(pairs)
        if not both:
            table.rows.append((model, PEERS[peer], *[_why(pairs)] * (len(SHARE_COLUMNS) - 2)))
            continue
        found = [own for own, _ in both]
        seconds = [second_half_seconds(run) for run in found]
        ratios = [second_half_seconds(known) / second_half_seconds(own) for own, known in both]
        epoch_seconds = EPOCH_STEPS * median(seconds)
        table.rows.append(
            (
                model,
                PEERS[peer],
                f"{BATCH / median(seconds):.0f}",
                median_of(ratios),
                f"{epoch_seconds:.2f}",
                load_variance(found),
                f"{epoch_seconds / 3600 * sum(PRICES):.5f}",
            )
        )
        table.measured[f"{model}, {PEERS[peer]} / static"] = ratios
        if peer == "ours":
            table.numbers.append(
                Number(
                    quantity=f"adaptive / static shares, second half: {model} on {title}",
                    goal=f">= {GOAL}",
                    found=median_of(ratios),
                    is_reached=median(ratios) >= GOAL,
                )
            )
    return table


def _why(pairs: Sequence[tuple[Run | str, Run | str]]) -> str:
    """No turn has both a run and that with static shares: for its own reasons, else for those."""
    own = {one for one, _ in pairs if isinstance(one, str)}
    static = {other for _, other in pairs if isinstance(other, str)}
    return "; ".join(sorted(own)) or f"with static shares: {'; '.join(sorted(static))}"
