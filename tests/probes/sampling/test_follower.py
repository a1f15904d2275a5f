"""One sampler for each node, whoever ends, hangs or removes what."""

import contextlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_hvd.messages import NodeEquipped, NodeSampled, event_to_json
from hetero_hvd.probes.sampling import sample_rate
from hetero_hvd.probes.sampling.follower import SAMPLE, SampleFollower
from hetero_hvd.probes.sampling.local_samples import follow_samples, read_sample
from hetero_hvd.probes.sampling.node_sampler import NodeSampler
from hetero_hvd.probes.sampling.sample_rate import RateWish, RateWishes
from hetero_hvd.probes.sampling.sampler import is_ended_by
from hetero_hvd.probes.sampling.shared_folder import FOLDER_VARIABLE, SharedFolder
from tests.fake_nvml.library import environment
from tests.leftovers import wait_until
from tests.module_clock import give_clock

OTHER_JOB = """
import sys, time
from hetero_hvd.probes.sampling.local_samples import follow_samples
follow_samples("other", lambda told: print(type(told).__name__, flush=True))
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where these tests share samples, with nobody else."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))
    return tmp_path / "own"


@pytest.fixture
def following(folder):  # noqa: ARG001 - where it follows
    """Starts a follower; gives what it is told and what it says."""
    with contextlib.ExitStack() as stack:

        def start(**settings):
            told, said = [], []
            follower = SampleFollower(told.append, say=said.append, **settings)
            follower.start()
            stack.callback(follower.close)
            return told, said, follower

        yield start


@pytest.fixture
def other_job(folder):  # noqa: ARG001 - where it follows
    """A process that follows the samples too, and has the sampler."""
    with subprocess.Popen([sys.executable, "-c", OTHER_JOB], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"NodeEquipped\n"
        yield process
        process.kill()


def samplers(folder):
    """Pids of the samplers of a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "hetero_hvd.probes.sampling.sampler" in words and str(folder) in words:
                found.append(int(entry.name))
    return found


@pytest.mark.process
def test_two_jobs_share_a_sampler_and_hand_it_over(folder, following, other_job):
    """Both get samples from one; when its job is killed, the other job's goes on within 2 s."""
    told, said, _ = following()
    wait_until(lambda: len(told) >= 2, 10, "samples of the other's sampler")
    assert len(samplers(folder)) == 1
    other_job.kill()
    killed_at, before = time.monotonic(), len(told)
    wait_until(lambda: len(told) >= before + 2, 10, "the next sampler")
    assert len(samplers(folder)) == 1
    assert time.monotonic() - killed_at < 5  # two samples, on a machine that may be busy
    kinds = [type(read_sample(content)) for content in told]
    assert NodeEquipped in kinds
    assert NodeSampled in kinds
    assert said == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "said_of_it"),
    [
        (signal.SIGKILL, "the sampler of this node has ended: exit code -9"),
        (signal.SIGSTOP, "the sampler of this node hangs for 2.5 s"),
        (signal.SIGTERM, ""),
        (signal.SIGHUP, ""),
    ],
    ids=["killed", "hangs", "asked to end", "hung up"],
)
def test_a_sampler_that_dies_or_hangs_is_replaced(folder, following, number, said_of_it):
    """And it is said once; not where it was asked to end: with all processes of a job, say."""
    told, said, _ = following(hang_seconds=2.5, retry_seconds=0.1)
    wait_until(lambda: len(told) >= 2, 10, "samples")
    (first,) = samplers(folder)
    os.kill(first, number)
    wait_until(lambda: [first] != samplers(folder) != [], 10, "another sampler")
    before = len(told)
    wait_until(lambda: len(told) > before, 10, "its samples")
    assert said == [said_of_it] * bool(said_of_it)


@pytest.mark.process
def test_a_removed_folder_is_made_again(folder, following):
    """A system may remove what a user has in memory when he leaves."""
    told, _, _ = following()
    wait_until(lambda: told, 10, "a sample")
    (first,) = samplers(folder)
    shutil.rmtree(folder)
    wait_until(lambda: [first] != samplers(folder) != [], 15, "another sampler")
    before = len(told)
    wait_until(lambda: len(told) > before, 10, "its samples")


@pytest.mark.process
def test_what_a_driver_of_gpus_holds_up_holds_up_nobody(
    tmp_path, folder, following, fake_nvml, monkeypatch
):
    """NVML gives no answer: the follower ends at once, and takes the sampler with it."""
    for name, value in environment(fake_nvml, told=tmp_path).items():
        if name != FOLDER_VARIABLE:
            monkeypatch.setenv(name, value)
    told, said, follower = following(hang_seconds=3.0, retry_seconds=60.0)
    wait_until(lambda: len(told) >= 2, 10, "samples")
    assert read_sample(told[-1]).devices[0].temperature_celsius == 64
    (tmp_path / "temperature").write_text("91")
    (tmp_path / "lost").write_text("1")
    before = len(told)
    wait_until(lambda: len(told) >= before + 2, 10, "samples of a hot GPU alone")
    newest = read_sample(told[-1])
    assert [gpu.temperature_celsius for gpu in newest.devices] == [91]
    assert newest.problems == ("GPU 1: GPU is lost",)
    (tmp_path / "hang").write_text("1")
    wait_until(lambda: said, 15, "that it is said")
    assert said == ["the sampler of this node hangs for 3 s"]
    assert samplers(folder) == []
    began = time.monotonic()
    follower.close()
    assert time.monotonic() - began < 2


def test_an_unwritable_folder_is_said_once(tmp_path, following):
    """There are no samples, and no error."""
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "x"
    told, said, _ = following(find_folder=lambda: SharedFolder(place), retry_seconds=0.01)
    wait_until(lambda: said, 5, "that it is said")
    time.sleep(0.6)  # two more looks
    assert len(said) == 1
    assert said[0].startswith("no samples of this node: ")
    assert told == []


GARBAGE = {
    "nothing": b"",
    "no JSON": b"\xff\x00",
    "no record": b"[]",
    "another record": b'{"type":"RunEnded","exit_code":0,"reason":""}',
    "a record of no kind": b'{"type":["a"],"node":null}',
    "too deep": b"[" * 100_000,
    "a field too many": b'{"type":"NodeSampled","root":"x"}',
    "a wrong type": b'{"type":"NodeSampled","load":"x"}',
    "too many GPUs": b'{"type":"NodeSampled","devices":[' + b",".join([b"{}"] * 65) + b"]}",
    "too many users": b'{"type":"NodeSampled","devices":[{"used_by":['
    + b",".join([b"{}"] * 65)
    + b"]}]}",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_no_sample(content):
    """Whoever has written it."""
    assert read_sample(content) is None


@pytest.mark.parametrize("node", ["", "a b", "ü\x1b[2J", "../../etc", "x" * 300])
def test_a_node_may_be_called_anything(folder, node):
    """Its name is no part of a path; samples that somebody else writes are handed on under it."""
    told = []
    shared = SharedFolder(folder)
    lock = shared.try_to_lock()
    contents = itertools.cycle([*GARBAGE.values(), event_to_json(NodeSampled(load=2.0))])

    def is_told():
        time.sleep(0.05)
        shared.write(SAMPLE, next(contents))
        return told

    with contextlib.closing(follow_samples(node, told.append)):
        time.sleep(0.1)
        for _ in GARBAGE:
            shared.write(SAMPLE, next(contents))
        contents = itertools.repeat(event_to_json(NodeSampled(load=2.0)))
        wait_until(is_told, 5, "the sample")
    os.close(lock)
    assert {(sample.node, sample.load) for sample in told} == {(node, 2.0)}


def test_a_sample_of_long_ago_is_not_handed_on(folder):
    """Its sampler may hang, or have ended: only what is written from now on is of now."""
    shared = SharedFolder(folder)
    lock = shared.try_to_lock()
    shared.write(SAMPLE, event_to_json(NodeSampled()))
    told = []
    with contextlib.closing(follow_samples("a", told.append)):
        time.sleep(0.8)
    os.close(lock)
    assert told == []


@pytest.mark.parametrize("due", [-1e9, -1.0, -1e-9, 0.0, 0.05], ids=str)
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_sampler_whose_sample_took_too_long_takes_the_next_one_at_once(
    monkeypatch, due, is_closed
):
    """It neither fails nor waits; the end of its input ends it all the same."""
    receiver, sender = os.pipe()
    with os.fdopen(receiver) as stdin, os.fdopen(sender, "wb") as other:
        monkeypatch.setattr(sys, "stdin", stdin)
        if is_closed:
            other.close()
        began = time.monotonic()
        assert is_ended_by(began + due) == is_closed
        assert time.monotonic() - began < 5


JUMPS = {
    "forth": ([0.0, 1.0], [1e9, 2e9], 1.0),
    "back": ([0.0, 1.0], [2e9, 1e9], 1.0),
    "no time passes": ([5.0, 5.0], [1e9, 1e9], math.nan),
}


@pytest.mark.parametrize(("clock", "wall", "seconds"), JUMPS.values(), ids=JUMPS)
def test_a_wall_clock_that_jumps_changes_no_rate(clock, wall, seconds):
    """Time between samples is the monotonic clock's."""
    ticks = iter([clock[0]] * 2 + [clock[1]] * 2)
    times = iter(wall)
    sampler = NodeSampler(lambda: next(ticks), lambda: next(times))
    first, second = sampler.take(), sampler.take()
    assert math.isnan(first.seconds)
    assert second.seconds == pytest.approx(seconds, nan_ok=True)
    assert (first.at_unix_seconds, second.at_unix_seconds) == tuple(wall)
    rate = second.network_received_bytes_per_second
    assert math.isnan(rate) or rate >= 0


@pytest.mark.process
def test_who_wants_samples_more_often_gets_them(folder, following):
    """As long as he does; who wants one a second gets that."""
    wanted = [0.25]
    told, _, _ = following(seconds=lambda: wanted[0])
    slow, _, _ = following(seconds=1.0)
    wait_until(lambda: len(told) >= 4, 20, "the first samples")
    before = len(told), len(slow)
    began = time.monotonic()
    wait_until(lambda: len(told) >= before[0] + 12, 20, "samples of a fast sampler")
    seconds = time.monotonic() - began
    assert len(slow) - before[1] <= seconds / 0.6 + 1
    assert (folder / f"wanted-{os.getpid()}").is_file()


def test_a_wish_that_is_not_said_any_more_is_forgotten(folder, monkeypatch):
    """Its process has ended, in whatever way; what is no wish is none."""
    now = [0.0]
    give_clock(monkeypatch, sample_rate, monotonic=lambda: now[0])
    shared = SharedFolder(folder)
    wishes = RateWishes(shared)
    assert wishes.seconds() == 1.0
    shared.write("wanted-1", b"soon")
    shared.write("wanted-2", b"0.001")
    RateWish().say(shared, 0.5)
    assert wishes.seconds() == 0.25
    now[0] = 5.0
    RateWish().say(shared, 0.5)
    assert wishes.seconds() == 0.25
    now[0] = 12.0
    assert wishes.seconds() == 0.5
    assert not (folder / "wanted-2").exists()
