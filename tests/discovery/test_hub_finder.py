"""Who has the key finds the hub; of two hubs one is used, and the other is told of."""

from __future__ import annotations

import asyncio
import time

import pytest

from hetero_hvd.discovery.advert import OF_HUB, OF_NODE, sign
from hetero_hvd.discovery.hub_finder import HubFinder
from hetero_hvd.discovery.multicast import adverts_in, packet_of
from hetero_hvd.discovery.unicast import AnnounceTarget
from tests.discovery.test_advert import KEY, make


def announced(identity, address, *, key=KEY, kind=OF_HUB, **more):
    """A packet of a hub."""
    advert = make(
        machine=identity, addresses=(address,), port=9391, slots=0,
        issued_at_seconds=time.time(), **more,
    )  # fmt: skip
    return packet_of("hub", 9391, sign(key, advert, kind), kind)


def found(*steps):
    """What is found after each step: packets, and the hub that was used before."""

    async def act():
        finder = HubFinder(KEY, time.time, told.append)
        finder._ear.ask = lambda: None
        finder._is_open = True  # nothing of this machine's network
        targets = []
        for packets, preferred in steps:
            for packet in packets:
                finder.heard("10.0.0.9", packet)
            targets.append((await finder.find(preferred, timeout_seconds=0)).target)
        return targets

    told = []
    return asyncio.run(act()), told


ONE, OTHER = AnnounceTarget("10.0.0.1", 9391), AnnounceTarget("10.0.0.2", 9391)


@pytest.fixture
def first():
    """What a hub announces now; after half a minute it is believed no more."""
    return announced("a" * 16, "10.0.0.1")


@pytest.fixture
def second():
    """The same of another one."""
    return announced("b" * 16, "10.0.0.2")


def test_who_has_the_key_is_believed(first):
    """Nobody else, and no node that announces itself."""
    strangers = [
        announced("c" * 16, "10.0.0.3", key=bytes(32)),
        announced("d" * 16, "10.0.0.4", kind=OF_NODE),
    ]
    targets, told = found((strangers, ""), ([first], ""))
    assert (targets, told) == ([None, ONE], [])


def test_of_two_hubs_the_one_that_was_used_stays(first, second):
    """Whichever is heard first; people are told, once."""
    targets, told = found(([second, first], "a" * 16), ([], "a" * 16))
    assert targets == [ONE, ONE]
    assert len(told) == 1
    assert "two hubs have this cluster's key" in told[0]


HEARD_LATER = {
    "the one that was used, soon": ("a", 10.0, ["a"], ONE),
    "the one that was used, too late": ("a", 0.3, [], OTHER),
    "any, as none was used": ("", 10.0, [], OTHER),
}


@pytest.mark.parametrize("case", HEARD_LATER.values(), ids=HEARD_LATER)
def test_the_hub_that_was_used_is_waited_for(case):
    """Where another one is heard before it, as by an agent that has just been started anew."""
    preferred, seconds, later, expected = case

    async def act():
        finder = HubFinder(KEY, time.time, [].append)
        finder._ear.ask = lambda: None
        finder._is_open = True  # nothing of this machine's network
        finder.heard("10.0.0.8", announced("b" * 16, "10.0.0.2"))

        async def hear():
            """When the finder has looked once."""
            for identity in later:
                finder.heard("10.0.0.9", announced(identity * 16, "10.0.0.1"))

        found, _ = await asyncio.gather(
            finder.find(preferred * 16, timeout_seconds=seconds), hear()
        )
        return found.target

    assert asyncio.run(act()) == expected


def test_a_hub_that_leaves_makes_room_for_another(first, second):
    """And so does one that was never used."""
    goodbye = announced("a" * 16, "10.0.0.1", leaves=True)
    targets, _ = found(([first, second], ""), ([goodbye], "a" * 16))
    assert targets == [ONE, OTHER]


def test_drivers_do_not_hear_hubs(first):
    """Nor hubs' finders nodes: earlier versions would take a hub for a node."""
    assert adverts_in(first) == []
    assert len(adverts_in(first, OF_HUB)) == 1
    assert adverts_in(announced("a" * 16, "10.0.0.1", kind=OF_NODE), OF_HUB) == []
