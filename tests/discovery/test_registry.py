"""The roster: one entry for each machine, and patience with those that fall silent."""

from __future__ import annotations

from hetero_hvd.discovery.advert import LIFETIME_SECONDS
from hetero_hvd.discovery.registry import ABSENT_SECONDS, HOLD_DOWN_SECONDS, NodeRegistry
from tests.discovery.test_advert import make

GONE_SECONDS = LIFETIME_SECONDS + HOLD_DOWN_SECONDS


def names(roster, now_seconds=0.0):
    """Who is there."""
    return [advert.name for advert in roster.present(now_seconds=now_seconds)]


def test_one_machine_under_two_names_is_one_node():
    """Its newest advert counts."""
    roster = NodeRegistry()
    roster.heard(make(name="alpha"), now_seconds=0.0)
    roster.heard(make(name="other"), now_seconds=0.0)
    assert names(roster) == ["other"]


def test_a_second_machine_with_the_name_or_the_gpu_of_another_is_not_used():
    """The first stays: two workers never land on one GPU."""
    roster = NodeRegistry()
    roster.heard(make(devices=("GPU-1", "GPU-2")), now_seconds=0.0)
    roster.heard(make(machine="1" * 32, addresses=("10.0.0.9",)), now_seconds=0.0)
    roster.heard(make(machine="2" * 32, name="beta", devices=("GPU-2",)), now_seconds=0.0)
    roster.heard(make(machine="3" * 32, name="gamma", devices=("GPU-3",)), now_seconds=0.0)
    assert names(roster) == ["alpha", "gamma"]
    assert roster.conflicts == 2


def test_a_silent_node_stays_for_the_hold_down():
    """Then it is gone; one that says good-bye is gone at once."""
    roster = NodeRegistry()
    roster.heard(make(), now_seconds=0.0)
    assert names(roster, GONE_SECONDS) == ["alpha"]
    assert names(roster, GONE_SECONDS + 0.1) == []
    roster.heard(make(), now_seconds=100.0)
    roster.heard(make(leaves=True), now_seconds=101.0)
    assert names(roster, 101.0) == []


def test_an_agent_that_was_started_anew_is_away_for_a_moment():
    """Long enough for the driver to let the workers go that it has lost; then it is there again."""
    roster = NodeRegistry()
    roster.heard(make(), now_seconds=0.0)
    roster.heard(make(instance=b"newstart"), now_seconds=10.0)
    assert names(roster, 10.0) == []
    roster.heard(make(instance=b"newstart"), now_seconds=11.0)
    assert names(roster, 10.0 + ABSENT_SECONDS) == ["alpha"]


def test_two_agents_with_one_identity_do_not_take_turns():
    """Copies of a machine, or two agents on one: the last one started stays."""
    roster = NodeRegistry()
    assert roster.heard(make(name="alpha", instance=b"1" * 8), now_seconds=0.0) is None
    assert roster.heard(make(name="beta", instance=b"2" * 8), now_seconds=1.0) is None
    for second in range(2, 60, 2):
        why = roster.heard(make(name="alpha", instance=b"1" * 8), now_seconds=second)
        assert why.startswith("another agent has the identity of the machine of alpha and counts")
        assert roster.heard(make(name="beta", instance=b"2" * 8), now_seconds=second) is None
        if second > 1 + ABSENT_SECONDS:
            assert names(roster, second) == ["beta"]
    roster.heard(make(name="alpha", instance=b"1" * 8, leaves=True), now_seconds=60.0)
    assert names(roster, 60.0) == ["beta"]  # the good-bye of one is not that of the other
    roster.heard(make(name="beta", instance=b"2" * 8, leaves=True), now_seconds=61.0)
    assert roster.heard(make(name="alpha", instance=b"1" * 8), now_seconds=62.0) is None
    assert names(roster, 61.0 + ABSENT_SECONDS) == ["alpha"]


def test_a_machine_that_was_booted_anew_is_no_other_machine():
    """It has another identity, but the name and the address of before."""
    roster = NodeRegistry()
    roster.heard(make(instance=b"1" * 8), now_seconds=0.0)
    assert roster.heard(make(machine="1" * 32, instance=b"2" * 8), now_seconds=30.0) is None
    assert names(roster, 30.0 + ABSENT_SECONDS) == ["alpha"]
    assert roster.conflicts == 0
