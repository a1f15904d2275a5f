"""A run's state as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from hetero_hvd.core.printable import printable
from hetero_hvd.core.view.live import LiveState, WorkerView
from hetero_hvd.core.view.live_nodes import NodeView
from hetero_hvd.core.view.quality import quality_in_words
from hetero_hvd.messages import STEP_PARTS

BAR_CHARACTERS = 30
NUM_EVENTS = 8
MIB = 2**20
GIB = 2**30


def table_of(state: LiveState, *, num_events: int = NUM_EVENTS) -> Iterator[str]:
    """Lines: how the run goes, who is slow and why, the workers, the last events."""
    return map(printable, _lines(state, num_events))


def _lines(state: LiveState, num_events: int) -> Iterator[str]:
    speed = _number(state.samples_per_second, "{:.0f}")
    loss = _number(state.loss, "{:.4g}")
    epoch = _number(state.epoch, "{:d}")
    yield (
        f"{state.run_id}  {state.state}  step {state.step}  epoch {epoch}  loss {loss}  "
        f"{speed} samples/s"
    )
    yield from quality_in_words(state.quality)
    yield from state.verdict
    width = max([len(worker.name) for worker in state.workers], default=6)
    yield (
        f"{'worker':{width}}  {'state':11}  share  {'phases':{BAR_CHARACTERS}}     step     late"
        "  speed    memory  GPU  restarts"
    )
    longest = max((sum(worker.phases.values()) for worker in state.workers), default=0.0)
    for worker in state.workers:
        yield f"{worker.name:{width}}  {_row(worker, longest)}"
    yield "phases: " + "  ".join(f"{part.letter} {part.words}" for part in STEP_PARTS)
    for node in state.nodes:
        yield from _of_node(node)
    yield from (words for _, words in state.events[-num_events:])


def _row(worker: WorkerView, longest: float) -> str:
    milliseconds = None if worker.step_seconds is None else worker.step_seconds * 1e3
    late = None if worker.lateness_seconds is None else worker.lateness_seconds * 1e3
    mebibytes = None if worker.memory_bytes is None else worker.memory_bytes / MIB
    utilization = worker.device_utilization_ratio
    return (
        f"{worker.state:11}  {_number(worker.share, '{:d}'):>5}  "
        f"{_bar(worker, longest):{BAR_CHARACTERS}}  {_number(milliseconds, '{:.0f} ms'):>7}  "
        f"{_number(late, '{:.0f} ms'):>7}  "
        f"{_number(worker.speed_ratio, '{:.2f}'):>5}  {_number(mebibytes, '{:.0f} MiB'):>8}  "
        f"{_number(utilization, '{:.0%}'):>3}  {worker.restarts:>8}"
    )


def _of_node(node: NodeView) -> Iterator[str]:
    """A line, one for each of its GPUs, and one for each process there."""
    yield (
        f"{node.name}: CPU {_number(node.cpu_use_ratio, '{:.0%}')}  "
        f"memory {_used(node.memory_used_bytes, node.memory_total_bytes)}  "
        f"{_number(node.power_watts, '{:.0f} W')}"
    )
    for gpu in node.devices:
        held_back = f"  held back: {', '.join(gpu.held_back)}" if gpu.held_back else ""
        yield (
            f"  gpu {gpu.index}: {gpu.name}  {_number(gpu.use_ratio, '{:.0%}')}  "
            f"memory {_used(gpu.memory_used_bytes, gpu.memory_total_bytes)}  "
            f"{_number(gpu.temperature_celsius, '{:.0f} °C')}  "
            f"{_number(gpu.power_watts, '{:.0f} W')}{held_back}"
        )
        yield from (f"    gpu {gpu.index}: {user}" for user in gpu.used_by)


def _used(used_bytes: float | None, total_bytes: float | None) -> str:
    if used_bytes is None or total_bytes is None:
        return "-"
    return f"{used_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GiB"


def _bar(worker: WorkerView, longest: float) -> str:
    """One letter for each thirtieth of the longest step; rounding never makes it longer."""
    bar, seconds = "", 0.0
    for part in STEP_PARTS:
        seconds += worker.phases.get(part.name, 0.0)
        end = round(BAR_CHARACTERS * seconds / longest) if longest > 0 else 0
        bar += part.letter * (end - len(bar))
    return bar


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
