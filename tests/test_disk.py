"""Whatever the disk does, the training goes on: every file that driver and worker write."""

import json
import logging
import shutil
import subprocess
from contextlib import ExitStack, contextmanager

import pytest
import torch

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.driver.output.console import WorkerOutput
from hetero_hvd.driver.output.json_logs import log_file
from hetero_hvd.kept_file import KeptFile
from hetero_hvd.messages import Evaluated, PhasesTimed, StepsTimed, WorkerId, WorkersJoined
from hetero_hvd.messages.launch import CheckpointSettings, WorkerLaunch
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.timings import TimingLog, read_timings
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.tracking.run_tracker import RunTracker
from hetero_hvd.run.tracking.speed_store import CurveStore
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.reproducible.fingerprints import Fingerprints
from tests.kit.small_disk import fill, missing_for_a_disk, small_disk

needs_mount = pytest.mark.skipif(missing_for_a_disk() is not None, reason="needs root")
ALPHA = WorkerId("alpha", 0)
JOINED = WorkersJoined(
    rendezvous_id=1,
    workers=(ALPHA,),
    applied_steps=0,
    global_batch_size=8,
    capacities=(-1,),
    prefetch_steps=0,
)
MUCH = "x" * 5000
CONFIG = ClusterConfig(job=JobConfig(), nodes=(NodeConfig(name="alpha", devices=()),))


class Said(list):
    """What people were told; a console, too."""

    say = list.append


@contextmanager
def decisions(folder, said):
    """Those of the balancer, beside the timings that they were based on."""
    bus = EventBus(said.say)
    tracker = RunTracker(CONFIG, said.say, folder, bus)
    yield lambda _: [bus.publish(JOINED) for _ in range(30)]  # more than fits into a page
    tracker.close()


@contextmanager
def timings(folder, said):
    """In segments, of which each second event begins a new one."""
    log = TimingLog(folder, segment_bytes=100, say=said.say)
    log.write(0.0, JOINED)
    evaluated = StepsTimed(
        rendezvous_id=1, step=1, epoch=0, loss=0.0, timings=(), exchange_seconds=0.0
    )
    yield lambda _: [log.write(1.0, evaluated) for _ in range(50)]
    log.close()


@contextmanager
def output(folder, said):
    """What a worker prints."""
    kept = WorkerOutput(said, folder / "alpha-0.log", "")
    kept.is_shown = False
    yield lambda number: kept.feed(f"{number} {MUCH}\n".encode())
    kept.close()


@contextmanager
def driver_log(folder, said):  # noqa: ARG001 - it is said on standard error
    """What we and Horovod log."""
    with log_file(folder / "driver.log"):
        yield lambda number: logging.getLogger("test").warning("%d %s", number, MUCH)


@contextmanager
def catalogue(folder, said):
    """What happened."""
    recorder = Recorder(folder, said.say)

    def write(number):
        recorder.observe(0.0, Evaluated(epoch=0, step=number, metrics={MUCH: 0.0}))
        recorder.flush(0.2)

    yield write
    recorder.close()


@contextmanager
def thinned(folder, said):
    """What happens again and again, and is thinned when it is old."""
    recorder = Recorder(folder, said.say)

    def write(number):
        for second in range(200):
            recorder.observe(
                1e6 * number + second, PhasesTimed(worker=ALPHA, step=0, seconds={}, counts={})
            )
        recorder.flush(0.2)

    yield write
    recorder.close()


@contextmanager
def limited(folder, said):
    """A file that goes on in a new one at its limit."""
    kept = KeptFile(folder / "limited.jsonl", said.say, max_bytes=10_000).touch()
    yield lambda _: [kept.append(MUCH.encode()) for _ in range(5)]
    kept.close()


@contextmanager
def curves(folder, said):  # noqa: ARG001 - it is said in driver.log
    """What was learnt about the workers."""
    store = CurveStore(folder / "curves.json", CONFIG.nodes)
    store.load(JOINED)
    model = StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.002)
    yield lambda _: store.save({ALPHA: SpeedProfile(model=model, largest_share=8)})


@contextmanager
def fingerprints(folder, said):  # noqa: ARG001 - the worker logs it
    """Digests of the training state."""
    parts = {"model": torch.nn.Linear(2, 2)}
    launch = WorkerLaunch(fingerprints=str(folder / "fingerprints.jsonl"))
    kept = Fingerprints(parts, MUCH, launch)
    yield lambda _: kept.epoch_done(Position(), is_leader=True)


@contextmanager
def checkpoints(folder, said):  # noqa: ARG001 - the worker logs it
    """The training state itself."""
    settings = CheckpointSettings(folder=str(folder / "checkpoints"), run="one")
    kept = Checkpoints(settings, Replica({"model": torch.nn.Linear(40, 100)}))

    def write(number):
        kept.save(number)
        kept.wait()

    yield write


WRITERS = {
    writer.__name__: writer
    for writer in (
        *(decisions, timings, output, driver_log),
        *(catalogue, thinned, limited, curves, fingerprints, checkpoints),
    )
}


def protect(folder):
    """Nothing may be written there."""
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


def remove(folder):
    """Somebody cleans up under the run."""
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


TROUBLES = {
    "is full": (fill, True),
    "becomes full": (fill, False),
    "is read-only": (protect, True),
    "has no such folder": (remove, True),
    "loses the folder": (remove, False),
}


@needs_mount
@pytest.mark.parametrize(("trouble", "is_early"), TROUBLES.values(), ids=TROUBLES.keys())
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_no_file_of_a_run_stops_the_training(tmp_path, writer, trouble, is_early):
    """No writer raises, none says the same again and again, and each ends in order."""
    said = Said()
    with small_disk(tmp_path / "disk") as disk, ExitStack() as stack:
        folder = disk / "run"
        folder.mkdir()
        if is_early:
            trouble(disk)
        write = stack.enter_context(writer(folder, said))
        write(0)
        if not is_early:
            trouble(disk)
        for number in range(1, 4):
            write(number)
        stack.pop_all().close()
    complaints = [line for line in said if "written" in line or "missing" in line]
    assert len(complaints) <= 4  # two files of one writer, at the first time and at the end
    if writer in (output, catalogue, thinned, limited, decisions) and trouble is not remove:
        assert complaints


@needs_mount
def test_what_is_missing_is_told_and_counted_and_nothing_half_is_left(tmp_path):
    """After the disk was full the file goes on with a whole record."""
    said = Said()
    with small_disk(tmp_path / "disk", kilobytes=64) as disk:
        file = KeptFile(disk / "records.jsonl", said.say).touch()
        written = 0
        while file.append(json.dumps(MUCH).encode() + b"\n"):
            written += 1
        assert not file.append(json.dumps(MUCH).encode() + b"\n")
        (name,) = [path.name for path in disk.iterdir()]
        why = "cannot be written: No space left on device; the training goes on, what is missing"
        assert said == [f"{disk / name} {why} there is counted"]
        subprocess.run(["mount", "-o", "remount,size=128k", disk], check=True)
        assert file.append(b'"last"\n')
        file.close()
        lines = (disk / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [MUCH] * written + ["last"]
    assert said[1:] == [f"{disk / name}: 2 records are missing"]


@needs_mount
def test_timings_can_be_read_after_a_full_disk(tmp_path):
    """Also those of segments that could not be put aside."""
    with small_disk(tmp_path / "disk", kilobytes=16) as disk:
        with timings(disk, Said()) as write:
            write(0)
            fill(disk)
            write(1)
        assert all(isinstance(event, WorkersJoined | StepsTimed) for _, event in read_timings(disk))
