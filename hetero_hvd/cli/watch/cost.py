"""`hetero-hvd cost`: what a run cost in money and energy, and whether it had to."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.cli.watch.run_argument import add_run
from hetero_hvd.errors import UserError

if TYPE_CHECKING:
    from hetero_hvd.core.cost.what_if import BreakEven, Without
    from hetero_hvd.run.records.reader import Record
    from hetero_hvd.run.reports.costs import Costs, EpochCost, TimeCost

MAX_EPOCHS_SHOWN = 20
TOLD_RATIO = 0.1
"""Of an epoch's time: what is known less exactly is told with its bounds."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_run(command)
    command.add_argument(
        "--to", metavar="TARGET", help="also up to a target, such as 'accuracy >= 0.9' or 'loss<1'"
    )
    command.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NODE",
        help="whether it would have been cheaper without this node; may be given several times",
    )
    command.add_argument(
        "--price",
        action="append",
        default=[],
        type=_node_and_number,
        metavar="NODE=PRICE",
        help="per hour, in place of what nodes.yaml said",
    )
    command.add_argument(
        "--owned",
        action="append",
        default=[],
        type=_node_and_number,
        metavar="NODE=PRICE",
        help="after how many hours to have bought the machine for this price is cheaper",
    )
    command.add_argument(
        "--power-price", type=_number, metavar="PRICE", help="of a kilowatt-hour of owned machines"
    )
    add_json(command, "; unknown is null")


def act(arguments: argparse.Namespace) -> int:
    """Print what it cost."""
    from hetero_hvd.core.cost.training import Target  # noqa: PLC0415
    from hetero_hvd.run.records.parts import read_run  # noqa: PLC0415
    from hetero_hvd.run.reports.costs import costs_of, in_words  # noqa: PLC0415

    target = Target.parse(arguments.to) if arguments.to is not None else None
    record = read_run(arguments.run)
    prices = dict(arguments.price)
    costs = costs_of(record, prices)
    _check_names([*prices, *dict(arguments.owned), *arguments.without], costs, record)
    to = costs.until(target, record) if target is not None else None
    questions = [_without(node, record, costs) for node in arguments.without]
    owned = [_owned(node, price, arguments, costs) for node, price in arguments.owned]
    if arguments.json:
        content = costs.as_dict() | ({"to": to.as_dict()} if to is not None else {})
        content |= {"without": [_as_dict(answer) for answer in questions]}
        content |= {"owned": [_as_dict(answer) for answer in owned]}
        show_json(content)
        return 0
    lines = list(in_words(costs))
    for line in lines or ["no node was there: nothing was to be paid"]:
        show(line)
    for line in _of_epochs(costs):
        show(line)
    if to is not None:
        show(str(to))
    answers: list[Without | BreakEven] = [*questions, *owned]
    for answer in answers:
        show(answer.words)
        for given in answer.inputs:
            show(f"  {given}")
    return 0


def _as_dict(answer: Without | BreakEven) -> dict[str, Any]:
    return asdict(answer) | {"words": answer.words}


def _of_epochs(costs: Costs) -> Iterator[str]:
    epochs = list(costs.epochs)
    left_out = len(epochs) - MAX_EPOCHS_SHOWN
    if left_out > 0:
        yield f"{left_out} epochs before, see --json"
    shown = epochs[-MAX_EPOCHS_SHOWN:]
    for epoch in shown:
        told, bounds = epoch.told, _bounds(epoch)
        parts = [f"epoch {epoch.epoch}: {told.seconds:.1f} s{_range(bounds, 'seconds', '.1f')}"]
        if told.cost is not None:
            parts.append(f"cost {told.cost:.4g}{_range(bounds, 'cost', '.4g')}")
        if told.joules is not None:
            parts.append(f"{told.joules:.4g} J{_range(bounds, 'joules', '.4g')}")
        yield "  ".join(parts)
    if any(map(_bounds, shown)):
        yield "(from, to): these epochs are short beside the time between two exchanges"


def _bounds(epoch: EpochCost) -> tuple[TimeCost, TimeCost] | None:
    """Least and most, where they are far from each other; None: they are not, or not known."""
    least, most = epoch.least, epoch.most
    if least is None or most is None:
        return None
    is_wide = most.seconds - least.seconds > TOLD_RATIO * epoch.told.seconds
    return (least, most) if is_wide else None


def _range(bounds: tuple[TimeCost, TimeCost] | None, name: str, digits: str) -> str:
    """Such as ` (0.2 to 1.8)`; what has no cost in a time costs nothing in it."""
    if bounds is None:
        return ""
    least, most = (format(getattr(bound, name) or 0.0, digits) for bound in bounds)
    return f" ({least} to {most})"


def _without(node: str, record: Record, costs: Costs) -> Without:
    from hetero_hvd.core.cost.what_if import Without, without  # noqa: PLC0415
    from hetero_hvd.run.reports.costs import exposed_seconds  # noqa: PLC0415
    from hetero_hvd.run.reports.share_times import share_times  # noqa: PLC0415

    joined, measured, since = share_times(record)
    if joined is None:
        return Without(node=node, problem="no membership was recorded")
    prices = costs.newest_prices
    return without(node, joined, measured, prices, exposed_seconds(record), since=since)


def _owned(node: str, price: float, arguments: argparse.Namespace, costs: Costs) -> BreakEven:
    from hetero_hvd.core.cost.what_if import break_even  # noqa: PLC0415

    watts = {used.node: used.mean_watts for used in costs.run.energy}
    rent = costs.newest_prices.get(node)
    return break_even(node, price, rent, arguments.power_price, watts.get(node, math.nan))


def _check_names(names: list[str], costs: Costs, record: Record) -> None:
    from hetero_hvd.messages import WorkersJoined  # noqa: PLC0415

    joined = [event for _, event in record.events if isinstance(event, WorkersJoined)]
    members = {worker.node for event in joined for worker in event.workers}
    known = sorted(members | {stay.node for stay in costs.stays})
    for name in names:
        if name not in known:
            there = ", ".join(known) or "none"
            raise UserError(f"{name!r}: was no node of this run; there are {there}")


def _number(text: str) -> float:
    value = _finite(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of at least 0")
    return value


def _node_and_number(text: str) -> tuple[str, float]:
    node, _, number = text.rpartition("=")
    value = _finite(number)
    if not node or value is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be NODE=PRICE with a number of at least 0, such as gamma=1.2"
        )
    return node, value


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None
