"""Slots and their restarts, with small real processes."""

import asyncio
import io
from collections import Counter
from dataclasses import replace

import pytest

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.workers import gpu_counts
from hetero_hvd.driver.workers import restart_policy as restarts
from hetero_hvd.driver.workers.launch_order import launch_order
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages import Admit, Ready
from tests.driver.conftest import until

pytestmark = pytest.mark.process


def cluster(*names, slots=1, max_restarts=3):
    """Settings with these local nodes."""
    nodes = tuple(NodeConfig(name=name, slots=slots, devices=()) for name in names)
    return ClusterConfig(job=JobConfig(max_restarts=max_restarts), nodes=nodes)


class Bench:
    """Slots whose workers run a shell script."""

    def __init__(self, folder, script):
        self.stream = io.StringIO()
        self.console = Console(self.stream)
        self.starts = []
        self.exits = []
        self.answers = []
        self.num_questions = 0
        self._script = script
        self.slots = WorkerPool(
            self.console,
            folder,
            launch=self._launch,
            count_gpus=self._count_gpus,
            on_change=lambda: None,
            on_exit=lambda slot, code: self.exits.append((slot.host, code)),
        )

    async def _launch(self, slot):
        self.starts.append(slot.host)
        if self._script is None:
            raise JobError("no way to it")
        command = ("sh", "-c", self._script)
        order = launch_order(slot.node, slot.worker.slot, command, {})
        return await WorkerProcess.start(slot.node, order, slot.output)

    async def _count_gpus(self, node):  # noqa: ARG002
        self.num_questions += 1
        if self.answers:
            return await self.answers.pop(0)()
        return 2

    def ready(self, slot):
        """What happens when the worker reports."""
        ready = Ready(worker=slot.worker, host=slot.host, interface="lo", pid=1, versions={})
        self.slots.became_ready(slot, ready)


def run(folder, script, scenario):
    """Run a scenario; all processes are ended afterwards."""

    async def main():
        bench = Bench(folder, script)
        try:
            await asyncio.wait_for(scenario(bench), 15)
        finally:
            bench.slots.kill()
            bench.slots.end()
            await bench.slots.wait(10)
            await asyncio.sleep(0)
            bench.console.close()
        return bench

    return asyncio.run(main())


def test_a_slot_that_keeps_dying_is_given_up(tmp_path, monkeypatch):
    """Each restart has a new host name and waits twice as long; after the last one it is over."""
    monkeypatch.setattr(restarts, "FIRST_DELAY_SECONDS", 0.01)

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", max_restarts=2))
        assert await bench.slots.wait(10)

    bench = run(tmp_path, "exit 3", scenario)
    assert bench.exits == [("alpha-0", 3), ("alpha-0.r1", 3), ("alpha-0.r2", 3)]
    assert "alpha:0 is given up after 2 restarts" in bench.stream.getvalue()
    assert bench.slots.all == ()


async def dies_again_and_again(bench):
    """Each time by another name."""
    assert await bench.slots.wait(10)
    assert len(bench.starts) == 3


async def cannot_be_started(bench):
    """Its node is out of reach."""
    assert await bench.slots.wait(10)
    assert len(bench.exits) == 3


async def leaves(bench):
    """Its node is taken out of nodes.yaml."""
    await until(lambda: bench.slots.find("alpha-0") is not None)
    bench.slots.follow(cluster("beta"))
    await until(lambda: [slot.host for slot in bench.slots.all] == ["beta-0"])


GONE = {
    "one that dies again and again": ("exit 3", dies_again_and_again),
    "one that cannot be started": (None, cannot_be_started),
    "one whose node leaves": ("exec sleep 100", leaves),
}


@pytest.mark.parametrize("case", GONE)
def test_names_of_workers_that_are_gone_are_forgotten(case, tmp_path, monkeypatch):
    """A node that comes and goes for weeks leaves none behind."""
    monkeypatch.setattr(restarts, "FIRST_DELAY_SECONDS", 0.01)
    command, happen = GONE[case]

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", max_restarts=2))
        await happen(bench)
        there = {slot.host for slot in bench.slots.all}
        assert bench.slots._by_host.keys() == there
        assert "alpha-0" not in there

    run(tmp_path, command, scenario)


def test_a_slot_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch):
    """A node that is out of reach counts like a worker that dies at once; its log says why."""
    monkeypatch.setattr(restarts, "FIRST_DELAY_SECONDS", 0.01)

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", max_restarts=1))
        assert await bench.slots.wait(10)

    bench = run(tmp_path, None, scenario)
    assert bench.exits == [("alpha-0", 127), ("alpha-0.r1", 127)]
    assert "no way to it" in (tmp_path / "alpha-0.log").read_text()


def test_who_ends_well_is_not_restarted(tmp_path):
    """Exit code 0 means done."""

    async def scenario(bench):
        bench.slots.follow(cluster("alpha"))
        assert await bench.slots.wait(10)

    assert run(tmp_path, "exit 0", scenario).starts == ["alpha-0"]


def test_only_ready_workers_are_available_and_in_file_order(tmp_path):
    """Horovod hears of a worker when it is warm, in the order of nodes.yaml."""

    async def scenario(bench):
        bench.slots.follow(cluster("beta", "alpha", slots=2))
        assert bench.slots.available() == ()
        await until(lambda: all(slot.process for slot in bench.slots.all))
        for slot in reversed(bench.slots.all):
            bench.ready(slot)
        assert bench.slots.available() == ("beta-0", "beta-1", "alpha-0", "alpha-1")
        assert bench.slots.find("alpha-1").worker.slot == 1

    run(tmp_path, "sleep 100", scenario)


def test_a_removed_member_runs_until_it_is_excluded(tmp_path):
    """One that was not admitted ends at once; a member stays until the membership is without it."""

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", "beta", "gamma"))
        await until(lambda: all(slot.process for slot in bench.slots.all))
        alpha, beta, gamma = bench.slots.all
        for slot in bench.slots.all:
            bench.ready(slot)
        beta.admission = Admit(environment={}, rendezvous_id=0)
        bench.slots.follow(cluster("alpha"))
        assert bench.slots.available() == ("alpha-0",)
        await asyncio.wait_for(gamma.process.exited, 10)
        assert alpha.process is not None
        assert not beta.process.exited.done()
        assert bench.slots.without({"alpha-0", "beta-0"}) == []
        assert bench.slots.without({"alpha-0"}) == [beta]

    run(tmp_path, "sleep 100", scenario)


def test_the_only_one_with_the_state_stays_until_others_have_it(tmp_path):
    """Horovod counts on it, whoever else is ready; if it is wanted again meanwhile, it stays."""

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", "beta"))
        await until(lambda: all(slot.process for slot in bench.slots.all))
        alpha, beta = bench.slots.all
        bench.ready(alpha)
        alpha.admission = beta.admission = Admit(environment={}, rendezvous_id=0)
        bench.slots.met((alpha.worker,))
        bench.slots.follow(cluster("beta"))
        bench.ready(beta)
        assert (bench.slots.available(), bench.slots.num_held()) == (("alpha-0", "beta-0"), 1)
        bench.slots.follow(cluster("alpha", "beta"))
        assert (bench.slots.num_held(), alpha.is_wanted, len(bench.starts)) == (0, True, 2)
        assert bench.slots.drain("alpha") == "alpha:0 leaves when others have taken over"
        assert bench.slots.available() == ("alpha-0", "beta-0")
        bench.slots.follow(cluster("alpha", "beta"))
        assert not alpha.is_wanted, "a drain is for good"
        bench.slots.met((alpha.worker, beta.worker))
        assert (bench.slots.available(), bench.slots.num_held()) == (("beta-0",), 0)

    run(tmp_path, "sleep 100", scenario)


STOP = "to end the run, which keeps its state, stop it"
BACK = "ask again when beta:0 is back, which is away for now"
LAST = {
    "the only worker": (("alpha",), "", "alpha", STOP),
    "the only one that is left": (("alpha", "beta"), "drained", "alpha:0", STOP),
    "the others are away for a time": (("alpha", "beta"), "in a trial", "alpha", BACK),
}
"""Nodes, why beta is gone, who is to go, and what to do instead."""


@pytest.mark.parametrize(("nodes", "why", "target", "instead"), LAST.values(), ids=LAST)
def test_the_last_worker_is_not_drained(tmp_path, nodes, why, target, instead):
    """A run of nobody would end as a failure; what ends it in order is said."""

    async def scenario(bench):
        bench.slots.follow(cluster(*nodes))
        await until(lambda: all(slot.process for slot in bench.slots.all))
        if why == "drained":
            bench.slots.drain("beta")
        elif why:
            bench.slots.withdraw([bench.slots.all[1]], why, f"is {why}")
        words = f"^alpha:0: no other worker would be left to train, so it stays; {instead}"
        with pytest.raises(UserError, match=words):
            bench.slots.drain(target)
        (left,) = [slot for slot in bench.slots.all if slot.is_wanted]
        assert left.worker.node == "alpha"

    run(tmp_path, "sleep 100", scenario)


@pytest.mark.parametrize("is_drained", [False, True])
def test_who_is_withdrawn_comes_back_unless_it_is_drained(tmp_path, is_drained):
    """The user's word is for good, also about one who is away for now."""

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", "beta"))
        await until(lambda: all(slot.process for slot in bench.slots.all))
        alpha = bench.slots.all[0]
        bench.slots.withdraw([alpha], "it is hot", "is hot")
        assert bench.slots.is_withdrawn(alpha.worker)
        if is_drained:
            assert bench.slots.drain("alpha") == "alpha:0 is away already, and stays so"
            with pytest.raises(UserError, match="there are: beta:0"):
                bench.slots.drain("alpha")
        assert bench.slots.is_withdrawn(alpha.worker) is not is_drained
        bench.slots.readmit([alpha.worker])
        await until(lambda: alpha not in bench.slots.all)
        names = [slot.worker.node for slot in bench.slots.all if slot.is_wanted]
        assert names == (["beta"] if is_drained else ["beta", "alpha"])

    run(tmp_path, "sleep 100", scenario)


def test_a_node_that_comes_back_has_a_new_host_name(tmp_path):
    """Horovod may still know, or have blacklisted, the name that it had."""

    async def scenario(bench):
        for names in (("alpha",), (), ("alpha",)):
            bench.slots.follow(cluster("omega", *names))
            await until(lambda: all(slot.process for slot in bench.slots.all))
        assert Counter(bench.starts) == Counter(["omega-0", "alpha-0", "alpha-0.r1"])

    run(tmp_path, "sleep 100", scenario)


def test_slots_follow_the_gpus_where_the_file_says_nothing(tmp_path):
    """A node without `slots` and `devices` is asked for its GPUs, once."""

    async def scenario(bench):
        nodes = (NodeConfig(name="gpubox"),)
        config = ClusterConfig(job=JobConfig(), nodes=nodes)
        bench.slots.follow(config)
        await until(lambda: bench.slots.all)
        assert [str(slot.worker) for slot in bench.slots.all] == ["gpubox:0", "gpubox:1"]
        bench.slots.follow(config)
        assert bench.num_questions == 1

    run(tmp_path, "sleep 100", scenario)


def test_a_node_that_does_not_tell_its_gpus_holds_up_nobody(tmp_path, monkeypatch):
    """Others start, it is asked again until it answers, and no question outlives the job."""
    monkeypatch.setattr(gpu_counts, "FIRST_DELAY_SECONDS", 0.01)
    hung = asyncio.Event()

    async def refuse():
        raise JobError("Permission denied (publickey).")

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            hung.set()

    async def scenario(bench):
        bench.answers = [refuse, refuse, hang]
        nodes = (*cluster("alpha").nodes, NodeConfig(name="gpubox"))
        config = ClusterConfig(job=JobConfig(), nodes=nodes)
        bench.slots.follow(config)
        assert [str(slot.worker) for slot in bench.slots.all] == ["alpha:0"]
        assert bench.slots.is_counting
        await until(lambda: bench.num_questions == 3)
        assert not bench.slots.is_counting  # nobody waits for it any more
        bench.slots.follow(cluster("alpha"))
        await asyncio.wait_for(hung.wait(), 5)
        bench.answers = [refuse]
        bench.slots.follow(config)
        await until(lambda: len(bench.slots.all) == 3)  # with the two that it has at last
        bench.answers = [hang]
        hung.clear()
        bench.slots.follow(replace(config, nodes=(*nodes, NodeConfig(name="other"))))
        await until(lambda: not bench.answers)
        bench.slots.end()
        await asyncio.wait_for(hung.wait(), 5)

    text = run(tmp_path, "sleep 100", scenario).stream.getvalue()
    why = "gpubox: cannot be asked for its GPUs: Permission denied (publickey).; asked again\n"
    assert text.count(why) == 2  # once for each of its two lives in nodes.yaml


def test_a_slot_between_two_restarts_starts_none_once_the_training_has_ended(tmp_path, monkeypatch):
    """It would begin with the first epoch again."""
    monkeypatch.setattr(restarts, "FIRST_DELAY_SECONDS", 0.2)

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", max_restarts=2))
        await until(lambda: "restart 1" in bench.stream.getvalue())
        bench.slots.may_restart = False
        assert await bench.slots.wait(10)

    assert run(tmp_path, "exit 3", scenario).starts == ["alpha-0"]


def test_at_the_end_nobody_waits_for_those_who_are_no_members(tmp_path):
    """A worker that was not admitted ends, a slot between two restarts starts none."""

    async def scenario(bench):
        bench.slots.follow(cluster("alpha", "beta"))
        await until(lambda: bench.exits)
        await until(lambda: "restart 1" in bench.stream.getvalue())
        bench.slots.end_idle()
        assert await bench.slots.wait(5)
        assert sorted(bench.starts) == ["alpha-0", "beta-0"]

    run(tmp_path, f"mkdir {tmp_path}/died && exit 1; sleep 100", scenario)
