"""Two agents with one identity: the one that was started last counts, however they are heard."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import pytest

from hetero_hvd.discovery.advert import Advert, Verifier, sign
from hetero_hvd.discovery.receiver import HeardAdvert
from hetero_hvd.discovery.registry import ABSENT_SECONDS, MAX_FORMER, NodeRegistry
from hetero_hvd.hub.announced_nodes import SILENT_SECONDS, AnnouncedNodes
from tests.discovery.test_advert import NOW, as_text, make
from tests.hub.test_announced_nodes import KEY, discovery, found_by, started, until

A = {"name": "alpha", "instance": b"1" * 8, "started_at_seconds": 100.0}
B = {"name": "beta", "instance": b"2" * 8, "started_at_seconds": 200.0}
OLD_A, OLD_B = A | {"started_at_seconds": 0.0}, B | {"started_at_seconds": 0.0}
A_LEAVES, B_LEAVES = A | {"leaves": True}, B | {"leaves": True}
FORMER = [OLD_A | {"instance": bytes([n] * 8)} for n in range(100, 101 + MAX_FORMER)]

HISTORIES = {
    "one": ([A, A], ["alpha"]),
    "the last one is heard second": ([A, B], ["beta"]),
    "the last one is heard first": ([B, A], ["beta"]),
    "both go on": ([A, B, A, B, A], ["beta"]),
    "the first one leaves": ([A, B, A_LEAVES], ["beta"]),
    "the first one leaves, unheard": ([B, A_LEAVES, B], ["beta"]),
    "the last one leaves": ([A, B, B_LEAVES, A], ["alpha"]),
    "the last one leaves, unheard": ([A, B_LEAVES], ["alpha"]),
    "the last one leaves and nobody else is there": ([A, B, B_LEAVES], []),
    "both leave": ([A, B, A_LEAVES, B_LEAVES], []),
    "it is started anew in order": ([A, A_LEAVES, B], ["beta"]),
    "it is started anew after a kill": ([A, B], ["beta"]),
    "neither tells when": ([OLD_A, OLD_B, OLD_A, OLD_B, OLD_A], ["beta"]),
    "the first one does not tell when": ([OLD_A, B, OLD_A], ["beta"]),
    "the last one does not tell when": ([A, OLD_B, A], ["beta"]),
    "both at once": ([A, B | {"started_at_seconds": 100.0}, A], ["beta"]),
    "many before it": ([*FORMER, OLD_B, FORMER[-1]], ["beta"]),
}
"""What is heard, one a second, and who counts then."""


def by_ear(adverts):
    """A driver that hears all of them itself."""
    registry = NodeRegistry()
    for second, advert in enumerate(adverts):
        registry.heard(advert, now_seconds=float(second))
    return registry


def through_the_hub(adverts, *, is_fresh):
    """A driver that asks the hub each second, or one that is started in the end and asks once."""
    hub, registry, verifier, after = AnnouncedNodes(KEY, "hub", None, 9), NodeRegistry(), None, 0
    verifier = Verifier(KEY)
    for second, advert in enumerate(adverts):
        hub.heard(HeardAdvert("10.0.0.9", as_text(sign(KEY, advert)), advert), float(second))
        if is_fresh and second < len(adverts) - 1:
            continue
        told = asyncio.run(hub.told({"after": after}))
        after = told["next"]
        for text in told["adverts"]:
            found = verifier.check(text, now_seconds=NOW + second, sender=None)
            if isinstance(found, Advert):
                registry.heard(found, now_seconds=float(second))
    assert not verifier.ignored
    return registry


DRIVERS = {
    "by ear": by_ear,
    "asks the hub each second": partial(through_the_hub, is_fresh=False),
    "is new and asks the hub": partial(through_the_hub, is_fresh=True),
}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("case", HISTORIES)
def test_all_agree_on_the_one_that_was_started_last(case, driver):
    """By what each advert tells; an earlier version does not, and counts when it is heard later."""
    history, names = HISTORIES[case]
    adverts = [make(issued_at_seconds=NOW + n, **more) for n, more in enumerate(history)]
    registry = DRIVERS[driver](adverts)
    found = registry.present(now_seconds=len(adverts) + ABSENT_SECONDS)
    assert [advert.name for advert in found] == names


def test_the_agent_after_a_good_bye_counts_a_moment_later():
    """Also where a hub has told both at once: the workers of the one are let go first."""
    registry = NodeRegistry()
    for second, more in ((0.0, B), (5.0, B_LEAVES), (5.0, A)):
        registry.heard(make(**more), now_seconds=second)
    assert registry.present(now_seconds=5.0 + ABSENT_SECONDS - 0.1) == ()
    (found,) = registry.present(now_seconds=5.0 + ABSENT_SECONDS)
    assert found.name == "alpha"


def test_a_hub_tells_of_the_other_one_once_the_last_one_is_silent():
    """And says meanwhile that it is not used, and why."""
    hub = AnnouncedNodes(KEY, "hub", None, 9)

    def hears(at_seconds, more):
        advert = make(**more)
        hub.heard(HeardAdvert("10.0.0.9", as_text(sign(KEY, advert)), advert), at_seconds)
        hub.forget(at_seconds)

    hears(0.0, B)
    hears(1.0, A)
    assert (hub.facts["announced"], hub.facts["ignored_adverts"]["conflict"]) == (["beta"], 1)
    hears(1.0 + SILENT_SECONDS, A)
    hears(2.0 + SILENT_SECONDS, A)
    assert hub.facts["announced"] == ["alpha"]
    hears(3.0 + SILENT_SECONDS, A_LEAVES)
    hub.forget(4.0 + 2 * SILENT_SECONDS)
    assert hub.facts["announced"] == []


@contextmanager
def agent(folder, name, port):
    """A real one that announces itself to a hub, beside multicast."""
    words = ["--slots", "0", "--port", "0", "--announce-to", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "hetero_hvd", "agent", "--name", name, *words]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_drivers_find_the_agent_that_was_started_last(tmp_path):
    """Two real ones of this machine, drivers that start later; then one of them leaves."""
    hub, port = started(tmp_path)

    async def are_announced(*names):
        async def told():
            return (await hub.order("status"))["announced"] == list(names)

        await until(told)

    async def is_refused():
        return (await hub.order("status"))["ignored_adverts"]["conflict"]

    async def found():
        driver = discovery(tmp_path, str(hub.target), [])
        return await found_by(driver, lambda it: it.present(), 1.5)

    async def act():
        with agent(tmp_path, "zeta", port):
            await are_announced("zeta")
            with agent(tmp_path, "eta", port) as last:
                await are_announced("eta")
                assert await asyncio.gather(found(), found(), found()) == [["eta"]] * 3
                await until(is_refused)  # it says again and again that it is there
                last.terminate()
                await are_announced("zeta")
                assert await found() == ["zeta"]
        status = await hub.order("status")
        assert "replayed" not in status["ignored_adverts"]

    try:
        asyncio.run(act())
    finally:
        hub.kill()
