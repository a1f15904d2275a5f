"""Who hears that a member is gone, and when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from hetero_hvd.driver.membership import membership as module
from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.messages import MemberLost, ResetRequested, WorkerId


class MeetingPlace:
    """In place of the rendezvous server: the test says who meets."""

    def __init__(self):
        self.waiting = set()
        self.invalid = []
        self.removed = []
        self.on_members = None

    def follow(self, *, on_members, on_return):  # noqa: ARG002 - nobody returns here
        """Who is told."""
        self.on_members = on_members

    def invalidate(self, host):
        """Its values are no longer given."""
        self.invalid.append(host)

    def gone(self, host):
        """It gets no rank."""
        self.removed.append(host)


def run(monkeypatch, course):
    """What the hosts were sent in the course of a few events."""
    sent = []

    async def script():
        meeting = MeetingPlace()
        summary = SimpleNamespace(num_memberships=0)
        membership = Membership(
            SimpleNamespace(),
            slots=SimpleNamespace(find=lambda _: None, without=lambda _: []),
            channels=SimpleNamespace(send=lambda host, word: sent.append((host, word))),
            endpoints=SimpleNamespace(),
            rendezvous=meeting,
            tracker=SimpleNamespace(summary=summary, rendezvous_id=3),
            on_over=lambda _: None,
        )
        meeting.on_members({"a", "b", "c"})
        summary.num_memberships = 1  # they have met
        course(membership, meeting)
        await asyncio.sleep(3 * module.PARTING_SECONDS)

    monkeypatch.setattr(module, "PARTING_SECONDS", 0.05)
    asyncio.run(script())
    return sorted(sent, key=lambda pair: pair[0])


WORD = MemberLost(host="a", rendezvous_id=3)


def leave_and_meet(membership, meeting):
    """The others are in the next membership, with a newcomer, before the word would go out."""
    membership.left("a")
    meeting.on_members({"b", "c", "d"})


@pytest.mark.parametrize(
    ("course", "told"),
    [
        (lambda membership, _: membership.lost("a"), ["b", "c"]),
        (lambda membership, _: membership.lost("a", is_orderly=True), []),
        (lambda membership, _: membership.left("a"), ["b", "c"]),
        (lambda membership, _: membership.left("z"), []),
        (leave_and_meet, []),
    ],
    ids=["lost", "has done its part", "left", "no member", "left, and the others have met anew"],
)
def test_who_is_told_that_a_member_is_gone(monkeypatch, course, told):
    """Those who may wait for it; nobody who is in another membership by then."""
    assert run(monkeypatch, course) == [(host, WORD) for host in told]


def test_the_word_follows_the_last_data_of_one_that_leaves(monkeypatch):
    """Its connections tell those next to it; a word that comes sooner cuts the step under way."""
    heard = []

    def course(membership, _):
        membership.left("a")
        heard.append(list(membership.rendezvous.invalid))

    assert run(monkeypatch, course)
    assert heard == [["a"]]


DYING = {
    "a member": ({}, ["b", "c"]),
    "one that has said its last word": ({"a": "Leaving"}, []),
    "the last one": ({"others": []}, []),
    "the last one without a last word": ({"b": "ScriptEnded", "c": "Crashed"}, []),
    "one of two without": ({"b": "ScriptEnded"}, ["b", "c"]),
    "one whose process is gone": ({"host": "a.r1"}, []),
}


@pytest.mark.parametrize("case", DYING)
def test_who_is_told_that_a_member_dies(monkeypatch, case):
    """Before its process has ended; once, as it has left the membership then."""
    facts, told = DYING[case]
    slots = {
        host: SimpleNamespace(
            host=host,
            left=asyncio.Event(),
            last_word=facts.get(host),
            process=SimpleNamespace(terminate=lambda host=host: ended.append(host)),
            runs_as=lambda name: name == facts.get("host", "a"),
        )
        for host in ["a", *facts.get("others", ["b", "c"])]
    }
    ended = []
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.01)
    changes = []

    def course(membership, meeting):
        membership._slots.find = slots.get
        membership._slots.changed = lambda: changes.append({s.host for s in membership.present})
        membership._dies(slots["a"], "a")
        assert meeting.removed == meeting.invalid == (["a"] if told else [])

    assert run(monkeypatch, course) == [(host, WORD) for host in told]
    assert slots["a"].left.is_set() == bool(told)
    assert ended == (["a"] if told else [])  # what has started the member may live on
    assert changes == ([{"b", "c"}] if told else [])


ENDS = {
    "all have ended": ([(False, False, None)], 0),
    "one has died and has not ended": ([(False, False, None), (True, True, None)], 1),
    "one has died and has ended": ([(True, False, None)], 0),
    "one that has said its last word still ends": ([(True, True, "Leaving")], 0),
    "one that is no member trains nowhere yet": ([(False, True, None)], 0),
}
"""Who has left, has a process and a last word; how often it is looked again before all is over."""


@pytest.mark.parametrize("case", ENDS)
def test_all_is_over_once_it_is_known_how_those_who_died_have_ended(monkeypatch, case):
    """Before that one that is given up would count as one that may go on."""
    facts, num_looks = ENDS[case]
    slots, over, looks = [], [], []
    for has_left, has_process, last_word in facts:
        left = asyncio.Event()
        if has_left:
            left.set()
        process = SimpleNamespace() if has_process else None
        slots.append(SimpleNamespace(left=left, process=process, last_word=last_word))

    def course(membership, _):
        def later(_seconds, call, reason):
            looks.append(list(over))
            for slot in slots:  # the last process has ended by then
                slot.process = None
            call(reason)

        membership._slots.all = slots
        membership._on_over = over.append
        membership._loop = SimpleNamespace(call_later=later)
        membership._tell_over("why")

    run(monkeypatch, course)
    assert looks == [[]] * num_looks
    assert over == ["why"]


WISHES = {
    "one leaves": [(set(), {"a"}, 1)],
    "one comes": [({"d"}, set(), 0)],
    "one comes, and another leaves": [({"d"}, {"a"}, 0)],
    "another leaves after that": [(set(), {"a"}, 1), (set(), {"a", "b"}, 1)],
}


@pytest.mark.parametrize("case", WISHES)
def test_who_leaves_waits_for_nobody(monkeypatch, case):
    """Somebody may want its device; newcomers are let in together, and so are asked for later."""
    counts = []

    def course(membership, _):
        for joining, leaving, _ in WISHES[case]:
            membership._slots.find = lambda host: SimpleNamespace(
                left=asyncio.Event(), worker=WorkerId(host, 0)
            )
            membership._request_reset(joining, leaving)
            counts.append(membership._next_request_at_seconds > 0)

    sent = run(monkeypatch, course)
    asked = [host for host, word in sent if isinstance(word, ResetRequested)]
    expected = [number for *_, number in WISHES[case]]
    assert counts == [bool(number) for number in expected]
    assert asked == (["a", "b", "c"] if any(expected) else [])
    named = {word.leaving for _, word in sent if isinstance(word, ResetRequested)}
    assert named == ({(WorkerId("a", 0),)} if any(expected) else set())
