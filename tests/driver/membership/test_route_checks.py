"""Which pairs of workers are tried, in which direction, and what counts as a broken route."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hetero_hvd.core.versions import NCCL
from hetero_hvd.driver.membership import route_checks as module
from hetero_hvd.driver.membership.route_checks import RouteChecks
from hetero_hvd.messages import GlooAddress, Ready, RouteTold, WorkerId

DROPPED = "no answer for 3 s, so packets are dropped on the way"


class Network:
    """In place of the workers: who reaches whom, by the last number of their addresses."""

    def __init__(self):
        self.asked = []
        self.known = []
        self.blocked = set()
        self.mute = set()
        self.now_seconds = 0.0
        self.checks = RouteChecks(
            self._send,
            on_known=lambda slot, _: self.known.append(slot.host),
        )
        self.slots = {}
        self._questions = []

    def _send(self, caller, question):
        self.asked.append((caller, question.host))
        self._questions.append((caller, question))
        return True

    def comes(self, host, number, *, machine=None, reduction="host memory", gloo=True):
        """A worker is ready; the last number of its address says where it is."""
        node, _, slot = host.partition("-")
        worker = WorkerId(node, int(slot or 0))
        address = GlooAddress(
            address=f"10.0.0.{number}", port=40000, greeting="x", ports=(32768, 60999)
        )
        ready = Ready(
            worker=worker,
            host=host,
            interface="eth0",
            pid=1,
            versions={"reduction": reduction},
            machine_id=machine or f"machine-{node}",
            gloo=address if gloo else None,
        )
        self.slots[host] = SimpleNamespace(host=host, worker=worker)
        self.checks.check(self.slots[host], ready, self.now_seconds)

    def answer(self):
        """All who were asked say what they have found.

        Returns:
            What was judged after each word, if anything was.
        """
        questions, self._questions = self._questions, []
        judged = []
        for caller, question in questions:
            if caller not in self.mute:
                fault = DROPPED if (caller, question.host) in self.blocked else ""
                told = RouteTold(host=question.host, fault=fault)
                self.checks.told(caller, told, self.now_seconds)
                judged.append(self.newly_apart())
        return [out for out in judged if out is not None]

    def pass_time(self, seconds):
        """The driver looks after so long."""
        self.now_seconds += seconds
        self.checks.look(self.now_seconds)

    def settle(self):
        """First tries and second ones."""
        self.answer()
        self.pass_time(module.SECOND_TRY_SECONDS)
        return self.answer()

    def again(self):
        """The members do not get on."""
        self.pass_time(module.AGAIN_SECONDS)
        self.checks.check_again(self.slots.values(), self.now_seconds)

    def apart(self):
        """Who has to stay out."""
        return {worker.node for worker in self.checks.apart(self.slots.values())}

    def newly_apart(self):
        """As that, when there is something to judge."""
        found = self.checks.newly_apart(self.slots.values())
        return None if found is None else {worker.node for worker in found}


def three(network, **more):
    """Three machines; addresses in another order than names."""
    for host, number in (("a", 2), ("b", 3), ("c", 1)):
        network.comes(host, number, **more)
    return network


def test_of_each_pair_the_higher_address_calls_as_in_gloo():
    """As `Pair::connect` has it; each waits until its routes are known."""
    network = three(Network())
    assert network.known == ["a"]
    assert sorted(network.asked) == [("a", "c"), ("b", "a"), ("b", "c")]
    network.answer()
    assert sorted(network.known) == ["a", "b", "c"]
    assert network.apart() == set()


def test_addresses_are_compared_as_numbers():
    """10.0.0.10 is above 10.0.0.9, whatever the texts are."""
    network = Network()
    network.comes("a", 10)
    network.comes("b", 9)
    assert network.asked == [("a", "b")]


def test_nccl_connects_both_ways():
    """Where gradients are added up on GPUs."""
    network = three(Network(), reduction=NCCL)
    assert len(network.asked) == 6


NOT_TRIED = {
    "two workers of one machine": {"machine": "one"},
    "no address to try": {"gloo": False},
}


@pytest.mark.parametrize("name", NOT_TRIED)
def test_who_is_not_tried_is_known_at_once(name):
    """There is no network between them, or nobody could answer."""
    network = three(Network(), **NOT_TRIED[name])
    assert (network.asked, network.known) == ([], ["a", "b", "c"])
    assert network.apart() == set()


BROKEN = {
    "nothing": (set(), set()),
    "a route that nobody takes": ({("c", "b")}, set()),
    "one pair": ({("b", "a")}, {"b"}),
    "all to one": ({("a", "c"), ("b", "c")}, {"c"}),
    "the first, to all": ({("b", "a"), ("a", "c")}, {"a"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_who_stays_out(name):
    """The smaller side, and of two equal ones who is named later."""
    blocked, out = BROKEN[name]
    network = Network()
    network.blocked = blocked
    three(network).settle()
    assert sorted(network.known) == ["a", "b", "c"]
    assert network.apart() == out


def test_the_words_name_both_nodes_address_port_and_what_to_do():
    """One line, for the newcomer too."""
    network = Network()
    network.blocked = {("b", "a")}
    three(network).settle()
    slots = network.slots
    words = network.checks.why_not(slots["b"], [slots["c"], slots["a"]])
    assert words.startswith(f"b (10.0.0.3) cannot reach a at 10.0.0.2, TCP port 40000: {DROPPED}; ")
    assert "open TCP ports 32768-60999 of a to b, name the right interface" in words
    assert "\n" not in words
    assert network.checks.why_not(slots["c"], [slots["a"], slots["b"]]) is None


def test_a_first_failure_alone_does_not_count():
    """It may have met a worker that was just ending."""
    network = Network()
    network.blocked = {("b", "a")}
    three(network).answer()
    assert "b" not in network.known
    network.blocked = set()
    network.pass_time(module.SECOND_TRY_SECONDS)
    network.answer()
    assert network.apart() == set()
    assert network.newly_apart() is None


def test_who_does_not_answer_costs_nobody_its_place():
    """Nothing is known then; those who wait do so for a bounded time."""
    network = Network()
    network.mute = {"b"}
    three(network).answer()
    assert sorted(network.known) == ["a"]
    network.pass_time(module.ANSWER_SECONDS + 0.1)
    assert sorted(network.known) == ["a", "b", "c"]
    assert network.apart() == set()


def test_a_worker_that_dies_is_waited_for_no_more():
    """Neither as caller nor as the one to be reached; its machine is tried by its next worker."""
    network = three(Network())
    network.checks.forget("b", 0.0)
    network.checks.forget("c", 0.0)
    assert network.known == ["a"]
    network.comes("b.r1", 3, machine="machine-b")
    network.answer()
    assert network.known == ["a", "b.r1"]


def test_another_worker_of_the_machine_is_asked_when_one_dies():
    """What was asked of the first is still to be known."""
    network = Network()
    network.comes("a", 2)
    network.comes("b", 3)
    network.comes("b-1", 3)
    assert network.asked == [("b", "a")]
    network.checks.forget("b", 0.0)
    assert network.asked == [("b", "a"), ("b-1", "a")]
    network.answer()
    assert network.known == ["a", "b-1"]


def test_one_answer_counts_for_all_workers_of_two_machines_while_it_is_fresh():
    """Eight slots a node are one question; a worker that comes later is another one."""
    network = Network()
    network.comes("a", 2)
    for slot in range(8):
        network.comes(f"b-{slot}", 3)
    assert network.asked == [("b-0", "a")]
    network.answer()
    assert len(network.known) == 9
    network.pass_time(module.FRESH_SECONDS)
    network.comes("b-8", 3)
    assert network.asked == [("b-0", "a"), ("b-8", "a")]


def test_a_channel_that_broke_before_the_answer_is_asked_again():
    """The question may never have come."""
    network = Network()
    network.comes("a", 2)
    network.comes("b", 3)
    network.comes("b", 3)
    assert network.asked == [("b", "a"), ("b", "a")]


def test_a_worker_that_says_no_more_where_it_listens_ends_no_driver():
    """It was to be reached a second time when its channel broke and it came again."""
    network = Network()
    network.comes("a", 2)
    network.blocked = {("b", "a")}
    network.comes("b", 3)
    network.answer()
    network.comes("a", 2, gloo=False)
    network.pass_time(module.SECOND_TRY_SECONDS)
    network.pass_time(module.ANSWER_SECONDS + 1)
    assert network.apart() == set()


def test_a_route_between_members_that_breaks_later_is_found_and_told():
    """Whoever notices that nobody gets on has all of them tried, at most each 5 s."""
    network = three(Network())
    network.answer()
    network.blocked = {("b", "c")}
    for _ in range(3):
        network.checks.check_again(network.slots.values(), network.now_seconds)
    assert len(network.asked) == 6
    assert network.settle() == [{"c"}]
    assert network.newly_apart() is None
    network.blocked = set()
    network.again()
    assert network.apart() == {"c"}  # until the answer is there
    network.answer()
    assert network.apart() == set()
    assert network.newly_apart() is None


def parts(*sides):
    """The routes between nodes of different sides, both ways."""
    return {
        (one, other) for side in sides for one in side for other in set("".join(sides)) - set(side)
    }


CUTS = {
    "in halves": (parts("abc", "def"), set(), {"d", "e", "f"}),
    "in halves, and one says nothing": (parts("abc", "def"), {"f"}, {"d", "e"}),
    "in three": (parts("ab", "cd", "ef"), set(), {"c", "d", "e", "f"}),
    "the smaller side is named first": (parts("ab", "cdef"), set(), {"a", "b"}),
    "two single pairs": (parts("a", "b") | parts("c", "d"), set(), {"b", "d"}),
}


@pytest.mark.parametrize(("blocked", "mute", "out"), CUTS.values(), ids=CUTS)
def test_a_cut_is_judged_once_when_all_of_it_is_known(blocked, mute, out):
    """Else one broken route after the other ends a node, of both sides in turn."""
    network = Network()
    for number, name in enumerate("abcdef", start=1):
        network.comes(name, number)
    assert network.answer() == []
    network.blocked = blocked
    network.mute = mute
    network.again()
    judged = network.settle()
    if mute:
        assert judged == []
        num_asked = len(network.asked)
        network.again()
        assert len(network.asked) == num_asked  # no round begins before the end of the last one
        network.pass_time(module.ANSWER_SECONDS)
        judged = [network.newly_apart()]
    assert judged == [out]


def test_the_end_of_a_worker_that_was_asked_lets_the_others_be_judged():
    """Nobody waits for its word."""
    network = three(Network())
    network.answer()
    network.blocked = {("a", "c")}
    network.mute = {"b"}
    network.again()
    assert network.settle() == []
    network.checks.forget("b", network.now_seconds)
    del network.slots["b"]
    assert network.newly_apart() == {"c"}
