"""Three workers whose tables a straggler watch is shown, in which rows are changed."""

from __future__ import annotations

from hetero_hvd.core.balance.step_time import StepTimeEstimator, StepTimeModel
from hetero_hvd.core.diagnosis.straggler import StragglerWatch
from hetero_hvd.core.simulation.simulation import row_of
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.messages import WorkerId

WORKERS = tuple(WorkerId(name, 0) for name in ("fast", "middle", "slow"))
SPEEDS = (1000.0, 500.0, 100.0)
SHARE = 50


class Watched:
    """A watch, and what it has reported of the tables that it was shown."""

    def __init__(self):
        self.watch = StragglerWatch()
        self.step = -1
        self.reports = []
        self.curves = {worker: StepTimeEstimator() for worker in WORKERS}

    def run(
        self,
        num_tables,
        change=lambda _index, row: row,
        shares=(SHARE,) * 3,
        overhead=0.0,
        *,
        is_whole=True,
    ):
        """Show it so many tables; gives what it says, in words."""
        found = []
        for _ in range(num_tables):
            self.step += 1
            pairs = zip(shares, SPEEDS, strict=True)
            rows = [row_of(share, share / speed + overhead) for share, speed in pairs]
            rows = [change(index, row) for index, row in enumerate(rows)]
            for worker, row in zip(WORKERS, rows, strict=True):
                curve = self.curves[worker]
                ratio = curve.update(row.local_batch_size, row.busy_seconds)
                if ratio is not None:
                    curve.rescale(ratio)
            found += self.watch.observe(
                WORKERS, rows, self.curves, step=self.step, is_whole=is_whole
            )
        self.reports += found
        return [event_in_words(report).partition(": ")[2] for report in found]


def recall(watched):
    """All were measured in an earlier job."""
    for worker, speed in zip(WORKERS, SPEEDS, strict=True):
        model = StepTimeModel(overhead_seconds=0.0, seconds_per_sample=1 / speed)
        watched.curves[worker].recall(model, SHARE)
        watched.watch.recall(worker, watched.curves[worker].copy(), SHARE)


def slower(index, *, compute=1.0, wait=0.0):
    """Change one worker's row."""

    def change(at, row):
        if at != index:
            return row
        busy = row.forward_seconds + row.backward_seconds
        return row_of(row.local_batch_size, busy * compute, data_wait_seconds=wait)

    return change
