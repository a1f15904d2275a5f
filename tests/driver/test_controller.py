"""What the driver makes of the ends of workers: go on, wait, or give up."""

import asyncio
import io
import time
from types import SimpleNamespace

import pytest

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.driver.controller import JobController
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.exit_codes import EXIT_REFUSED, EXIT_TRY_AGAIN, EXIT_UNFIT
from hetero_hvd.messages import (
    Crashed,
    Entered,
    Finished,
    Heartbeat,
    Leaving,
    ScriptEnded,
    WorkerId,
)
from hetero_hvd.run.tracking import diagnosis
from tests.module_clock import give_clock

EXIT_NO_CONNECTION = 255
ALPHA = WorkerId("alpha", 0)


def one_slot(team, folder, name="alpha", **attributes):
    """A slot of the team, for its only worker or for another one."""
    output = WorkerOutput(team._console, folder / f"{name}-0.log", "")
    node = NodeConfig(name=name, slots=1, devices=())
    worker = WorkerId(name, 0)
    slot = Slot(worker=worker, node=node, output=output, host=f"{name}-0", **attributes)
    team.slots._tasks[slot] = None
    team.slots._by_host[slot.host] = slot
    return slot


def fail_to_start(team, folder, code, launcher="agent"):
    """A worker ends before it was ready, at its second try."""
    slot = one_slot(team, folder, num_restarts=1)
    slot.node = NodeConfig(name="alpha", slots=1, devices=(), launcher=launcher)
    team._exited(slot, code)
    del team.slots._tasks[slot]
    slot.output.close()


def fail_to_start_here(team, folder, code):
    """As that, on the driver's own machine."""
    fail_to_start(team, folder, code, launcher="local")


def lose_all(team, _, code):
    """The only member's process ends with this code while it trains, and nobody is left."""
    team.membership._horovod = SimpleNamespace(hosts_changed=lambda: None)
    team._last_failure = code
    team._slots_changed()
    team._over(None)


def leave_one_after_the_other(team, _, code):
    """All members are lost while a slot is still there, then that is given up as well."""
    team._last_failure = code
    team.tracker.workers = (ALPHA,)
    team.all_lost.set()  # a new start is awaited
    team._slots_changed()


ENDS = {
    "all members are asked to leave": (leave_one_after_the_other, False, 143, True),
    "all members leave, agents may come": (leave_one_after_the_other, True, 143, False),
    "an agent is restarted while its worker trains": (lose_all, True, EXIT_NO_CONNECTION, False),
    "the only worker fails": (lose_all, True, 1, False),
    "an agent is not back yet": (fail_to_start, True, EXIT_NO_CONNECTION, False),
    "a script here ends with an agent's code": (fail_to_start_here, True, EXIT_NO_CONNECTION, True),
    "the script of an announced node fails": (fail_to_start, True, 3, True),
    "the only node of nodes.yaml is lost": (lose_all, False, EXIT_NO_CONNECTION, True),
    "the only node of nodes.yaml is out of reach": (fail_to_start, False, EXIT_NO_CONNECTION, True),
}


def a_team(folder, *, discover):
    """A team without workers, and its console."""
    (folder / "logs").mkdir()
    nodes = () if discover else (NodeConfig(name="alpha", slots=1, devices=()),)
    job = JobConfig(
        discover=discover, cluster_key_file=str(folder / "key"), driver_address="127.0.0.1"
    )
    console = Console(io.StringIO())
    config = ClusterConfig(job=job, nodes=nodes)
    return JobController(config, ("train.py",), folder, console), console


@pytest.mark.parametrize(("happen", "discover", "code", "ends"), ENDS.values(), ids=ENDS.keys())
def test_a_job_gives_up_only_when_nothing_can_come(tmp_path, happen, discover, code, ends):
    """Where nodes announce themselves it waits for others; a broken script ends it."""

    async def scenario():
        team, console = a_team(tmp_path, discover=discover)
        happen(team, tmp_path, code)
        assert team.ended.done() is ends
        if happen is lose_all:
            assert team.all_lost.is_set() is not ends
        team.membership._horovod = None
        await team.close()
        console.close()

    asyncio.run(scenario())


STARTS, READY, LEAVES = "still starts", "is ready", "is refused"

REFUSALS = {
    "nobody else is there": (EXIT_REFUSED, False, None, True),
    "the other is not ready yet": (EXIT_REFUSED, False, STARTS, True),
    "the other is ready": (EXIT_REFUSED, False, READY, False),
    "the others train": (EXIT_REFUSED, True, READY, False),
    "the others train, and one is started again": (EXIT_REFUSED, True, STARTS, False),
    "its machine is unfit, there is no other": (EXIT_UNFIT, False, None, True),
    "its machine is unfit, the other is not ready yet": (EXIT_UNFIT, False, STARTS, False),
    "its machine is unfit, so was the other": (EXIT_UNFIT, False, LEAVES, True),
    "its machine is unfit, the others train": (EXIT_UNFIT, True, READY, False),
}
"""How it ends, whether the training has started, what the other worker does, and whether the job
ends."""


@pytest.mark.parametrize(("code", "has_started", "other", "ends"), REFUSALS.values(), ids=REFUSALS)
def test_wrong_input_of_one_worker_is_that_of_the_job_if_none_got_further(
    tmp_path, code, has_started, other, ends
):
    """Else that slot is refused, once and in one line: a restart would end in the same way."""

    async def scenario():
        team, console = a_team(tmp_path, discover=False)
        process = SimpleNamespace(terminate=lambda: None)
        slots = [one_slot(team, tmp_path, process=process)]
        slots[0].output.feed(b"no such dataset (train.py:7)\n")
        if other is not None:
            ready = object() if other == READY else None
            slots.append(one_slot(team, tmp_path, name="beta", process=process, ready=ready))
            slots[1].is_wanted = other != LEAVES
        if has_started:
            team.membership._horovod = SimpleNamespace(hosts_changed=lambda: None)
        team._exited(slots[0], code)
        assert team.ended.done() is ends
        assert slots[0].is_wanted is ends
        if ends:
            expected = EXIT_TRY_AGAIN if code == EXIT_UNFIT else 2  # another machine may be fit
            ending = JobResult(expected, "alpha:0: no such dataset (train.py:7)")
            assert team.ended.result() == ending
        else:
            assert team.slots.quarantined[ALPHA][1] == "no such dataset (train.py:7)"
        team.membership._horovod = None
        for slot in slots:
            del team.slots._tasks[slot]
            slot.output.close()
        await team.close()
        console.close()
        said = console._stream.getvalue()
        assert said.count("alpha:0 is refused (no such dataset (train.py:7))") == (not ends)

    asyncio.run(scenario())


BEHIND = {
    "all train": (1, (1,), True),
    "nobody trains yet": (0, (0,), True),
    "it joins a job that trains": (0, (1,), False),
    "it joins a job that trains for the second time": (0, (2,), False),
    "nobody else is there": (0, (), True),
}
"""How many loops over epochs it has begun, how many the others, and whether the job ends."""


@pytest.mark.parametrize(("own", "others", "ends"), BEHIND.values(), ids=BEHIND)
def test_wrong_input_of_a_member_that_does_not_train_while_the_others_do_is_its_own(
    tmp_path, own, others, ends
):
    """As of one that joins and finds no way to the others; that slot is refused."""

    async def scenario():
        team, console = a_team(tmp_path, discover=False)
        process, admission, ready = SimpleNamespace(), object(), object()
        slots = [
            one_slot(
                team,
                tmp_path,
                name,
                num_entered=num,
                process=process,
                admission=admission,
                ready=ready,
            )
            for name, num in zip(("alpha", "beta"), (own, *others), strict=False)
        ]
        team.membership.hosts = {slot.host for slot in slots}
        told = Crashed(worker=ALPHA, error="no way", traceback="", user_error=True)
        slots[0].heard(told)
        team._handle(slots[0], told)
        assert team.ended.done() is ends
        assert (team.slots.quarantined.get(ALPHA) is None) is ends
        for slot in slots:
            del team.slots._tasks[slot]
            slot.output.close()
        await team.close()
        console.close()
        assert ("alpha:0 is refused (no way)" in console._stream.getvalue()) is not ends

    asyncio.run(scenario())


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_was_finished_before_the_newest_loop_does_not_make_a_finished_training(
    tmp_path, has_begun
):
    """Both are lost after their first loop, one before it has begun a second, which the other did.

    Where nobody has begun one, the job is lost after its end, with that exit code.
    """

    async def scenario():
        team, console = a_team(tmp_path, discover=False)
        slots = [one_slot(team, tmp_path, name, ready=object()) for name in ("alpha", "beta")]
        team.tracker.workers = tuple(slot.worker for slot in slots)
        words = [(slot, Entered(worker=slot.worker)) for slot in slots]
        words += [(s, Finished(worker=s.worker, applied_steps=5, checksum="abc")) for s in slots]
        words += [(slots[1], Entered(worker=slots[1].worker))] * has_begun
        for slot, word in words:
            slot.heard(word)
            team._handle(slot, word)
        for slot in slots:
            team._exited(slot, 137)
            del team.slots._tasks[slot]
            slot.output.close()
            team.tracker.workers = (slots[1].worker,)
        team._over(None)
        ending = team.ended.result()
        assert ending.reason.startswith("the training is finished") is not has_begun
        assert ending.exit_code == 137
        await team.close()
        console.close()

    asyncio.run(scenario())


LAST_WORDS = [
    Finished(worker=ALPHA, applied_steps=5, checksum="abc"),
    ScriptEnded(applied_steps=5, checksum="abc"),
    Leaving(applied_steps=5),
]


@pytest.mark.parametrize("word", LAST_WORDS, ids=lambda word: type(word).__name__)
def test_nobody_waits_for_a_step_of_who_has_said_that_it_takes_none(tmp_path, monkeypatch, word):
    """However its training ends, what follows in its script is no stall."""

    async def scenario():
        team, console = a_team(tmp_path, discover=False)
        slot = one_slot(team, tmp_path)
        team.tracker.diagnosis._stall.begin((ALPHA,), 4, time.monotonic())
        team._handle(slot, Heartbeat(applied_steps=5))
        team._handle(slot, word)
        told = []
        team.bus.subscribe(lambda _, event: told.append(event), "")
        later = time.monotonic() + 100.0
        give_clock(monkeypatch, diagnosis, monotonic=lambda: later)
        team.tracker.diagnosis.look_for_stall(is_training=True)
        assert not told
        del team.slots._tasks[slot]
        slot.output.close()
        await team.close()
        console.close()

    asyncio.run(scenario())
