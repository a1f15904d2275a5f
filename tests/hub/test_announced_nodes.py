"""Nodes that announce themselves to a hub: what it believes, tells, forgets, and a driver finds."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.config.job import JobConfig
from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.discovery.advert import MAX_REMEMBERED, Verifier, sign
from hetero_hvd.discovery.hub_link import MAX_TOLD_ADVERTS, ToldAdverts
from hetero_hvd.discovery.machine import own_addresses
from hetero_hvd.discovery.multicast import packet_of
from hetero_hvd.discovery.receiver import HeardAdvert
from hetero_hvd.driver.nodes import hub_adverts, node_discovery
from hetero_hvd.driver.nodes.hub_adverts import HubAdverts
from hetero_hvd.driver.nodes.node_discovery import NodeDiscovery
from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.hub.announced_nodes import RENEW_SECONDS, SILENT_SECONDS, AnnouncedNodes
from tests.discovery.test_advert import as_text, make
from tests.hub.rig import HubProcess, free_port

KEY, OTHER_KEY = secrets.token_bytes(32), secrets.token_bytes(32)
"""Nobody else announces himself by these."""


def packet(name, *, key=KEY, ago=0.0, **more):
    """An advert in a packet, of a machine of its own."""
    fields = {"machine": name.encode().hex().ljust(32, "0"), "issued_at_seconds": time.time() - ago}
    advert = make(name=name, **(fields | more))
    return packet_of(name, advert.port, sign(key, advert))


STRANGER = next((each for each in own_addresses() if ":" not in each), "127.0.0.1")
"""Whose adverts have other addresses."""


def send(port, *packets):
    """As an agent with --announce-to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind((STRANGER, 0))
        for each in packets:
            end.sendto(each, ("127.0.0.1", port))


OF_ITS_OWN = """
import sys
from hetero_hvd.cli import main
from hetero_hvd.discovery import listener

listener.PORT = int(sys.argv.pop(1))
sys.exit(main())
"""
"""A hub that hears multicast at another port: at the usual one other tests send floods."""


def started(folder):
    """A hub that listens for adverts; gives it and the port."""
    folder.mkdir(exist_ok=True)
    hub, port = HubProcess(folder, secret=KEY), free_port()
    hub.start("--listen", str(port), program=("-c", OF_ITS_OWN, str(free_port())))
    return hub, port


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """One for all rows: each has nodes of its own."""
    hub, port = started(tmp_path_factory.mktemp("hub"))
    yield hub, port
    hub.kill()


async def asked(hub, action, **arguments):
    """Have the hub do something, as soon as it is there."""
    return await hub.order(action, **arguments)


async def told(hub, key=KEY):
    """Name to advert of all that a driver believes that asks the hub now."""
    answer = msgspec.convert(await asked(hub, "adverts"), ToldAdverts)
    verifier = Verifier(key)
    found = [verifier.check(text, now_seconds=time.time()) for text in answer.adverts]
    return {advert.name: advert for advert in found}


async def until(is_so, seconds=30):
    """Wait for something that the hub tells."""
    deadline = time.monotonic() + seconds
    while not (found := await is_so()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    return found


def changed(found, at):
    """With another byte there."""
    return found[:at] + bytes([found[at] ^ 1]) + found[at + 1 :]


AT_THE_HUB = {
    "a genuine one": (lambda name: [packet(name)], True, None),
    "without a slot": (lambda name: [packet(name, slots=0)], True, None),
    "a good-bye": (lambda name: [packet(name, ago=1), packet(name, leaves=True)], "leaves", None),
    "one after its good-bye": (
        lambda name: [packet(name, leaves=True, ago=1), packet(name, ago=2)], "leaves", "replayed"),
    "twice": (lambda name: [packet(name, ago=0.5)] * 2, True, None),
    "again": (lambda name: [packet(name), packet(name, ago=5)], True, "replayed"),
    "again, by the agent": (
        lambda name: [packet(name, addresses=(STRANGER,), ago=n) for n in (0, 0, 5)],
        True, "said again"),
    "of another key": (lambda name: [packet(name, key=OTHER_KEY)], False, "of another key"),
    "forged": (lambda name: [changed(packet(name), -5)], False, "of another key"),
    "old": (lambda name: [packet(name, ago=60)], False, "stale"),
    "of the future": (lambda name: [packet(name, ago=-60)], False, "stale"),
    "not to be connected to": (
        lambda name: [packet(name, addresses=("224.0.0.1",))], False, "unsound"),
    "cut off": (lambda name: [packet(name)[:60]], False, None),
    "noise": (lambda _name: [os.urandom(n) for n in (1, 12, 100, 1400, 9000)], False, None),
    "a flood": (lambda name: [packet(name, key=OTHER_KEY)] * 500, False, "dropped"),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_THE_HUB)
def test_the_hub_tells_what_a_driver_would_believe(hub, case):
    """All else is counted by its reason, and the next genuine one is heard none the later."""
    process, port = hub
    packets, is_told, reason = AT_THE_HUB[case]
    if reason == "replayed" and is_loopback(STRANGER):
        pytest.skip("needs an interface")
    name = f"n{list(AT_THE_HUB).index(case)}"

    async def act():
        before = (await asked(process, "status"))["ignored_adverts"]
        send(port, *packets(name))
        await asyncio.sleep(0.3)  # a tick: of one address so much is read in each
        send(port, packet(f"{name}x"))

        async def is_heard():
            return f"{name}x" in await told(process)

        await until(is_heard)
        found, status = await told(process), await asked(process, "status")
        assert (name in found) == bool(is_told)
        assert (name in status["announced"]) == (is_told is True)
        assert f"{name}x" in status["announced"]
        if is_told == "leaves":
            assert found[name].leaves
        ignored = status["ignored_adverts"]
        if reason == "said again":
            assert ignored == before
        elif reason is not None:
            assert ignored[reason] > before.get(reason, 0)

    asyncio.run(act())


def test_a_hub_that_was_killed_hears_them_again_and_two_hubs_have_what_each_is_told(tmp_path):
    """Nothing is kept on the disk, and one hub tells nothing of the other's."""
    first, port = started(tmp_path / "first")
    second, second_port = started(tmp_path / "second")

    async def hears(hub, to_port, name):
        send(to_port, packet(name))  # as agents do it, again and again
        return await told(hub)

    async def act():
        await asked(first, "status")
        await asked(second, "status")
        assert list(await until(lambda: hears(first, port, "alpha"))) == ["alpha"]
        assert list(await until(lambda: hears(second, second_port, "beta"))) == ["beta"]
        first.kill()
        first.start("--listen", str(port))
        assert await told(first) == {}
        await until(lambda: hears(first, port, "alpha"))

    try:
        asyncio.run(act())
        assert "Traceback" not in first.log + second.log
    finally:
        first.kill()
        second.kill()


class Heard:
    """What a hub has heard, by a clock of the test; asked as a driver asks."""

    def __init__(self):
        self.nodes = AnnouncedNodes(KEY, "hub", None, 9)
        self.after = 0

    def hears(self, number, at_seconds, **more):
        """An advert of a machine of this number."""
        advert = make(name=f"n{number}", machine=f"{number:032}", **more)
        text = as_text(sign(KEY, advert))
        self.nodes.heard(HeardAdvert("10.0.0.9", text, advert), at_seconds)

    def news(self, at_seconds):
        """How many there are that were not told before; answers come in parts."""
        self.nodes.forget(at_seconds)
        number = 0
        while True:
            answer = asyncio.run(self.nodes.told({"after": self.after}))
            self.after = answer["next"]
            number += len(answer["adverts"])
            if len(answer["adverts"]) < MAX_TOLD_ADVERTS:
                return number


def test_what_is_news_to_a_driver():
    """A node, a change of it, and that it is still there; by a clock."""
    heard = Heard()
    heard.hears(1, 0.0)
    assert heard.news(0.0) == 1
    heard.hears(1, 2.0)
    assert heard.news(2.0) == 0
    heard.hears(1, 4.0, slots=2)
    assert heard.news(4.0) == 1
    heard.hears(1, 4.0 + RENEW_SECONDS, slots=2)
    assert heard.news(4.0 + RENEW_SECONDS) == 1
    heard.hears(1, 15.0, slots=2, leaves=True)
    assert heard.news(15.0) == 1
    heard.after = 0
    assert heard.news(15.0 + SILENT_SECONDS) == 1
    heard.after = 0
    assert heard.news(15.1 + SILENT_SECONDS) == 0


@pytest.mark.parametrize("number", [MAX_TOLD_ADVERTS, 1250, MAX_REMEMBERED + 10])
def test_many_nodes_come_in_parts_each_once(number):
    """As many as a verifier remembers, whoever has the key may say so."""
    heard = Heard()
    for each in range(number):
        heard.hears(each, 0.0)
    assert heard.news(0.0) == min(number, MAX_REMEMBERED)
    assert heard.news(0.0) == 0
    heard.hears(number - 1, 1.0, slots=2)
    assert heard.news(1.0) == 1


def discovery(tmp_path, hub, said):
    """A driver that names a hub, or not."""
    path = tmp_path / "driver.key"
    path.write_text(KEY.hex())
    path.chmod(0o600)
    job = JobConfig(discover=True, cluster_key_file=str(path), hub=hub)
    return NodeDiscovery(job, said.append)


async def found_by(discovered, is_so, least_seconds):
    """Names of the nodes that a driver has found when something is so, as it ticks."""
    await discovered.open()
    try:
        before = time.monotonic()
        while not is_so(discovered) or time.monotonic() - before < least_seconds:
            assert time.monotonic() - before < 30
            discovered.listen()
            await asyncio.sleep(0.1)
    finally:
        await discovered.close()
    return [advert.name for advert in discovered.present()]


def notes(said):
    """What a driver has told of the hub."""
    return [line for line in said if line.startswith("note: ")]


AT_A_DRIVER = {
    "one that listens": (True, KEY, [], ["driven"]),
    "one that does not": (False, KEY, [], []),
    "one of another key": (True, OTHER_KEY, ["the other end does not hold this cluster's key"], []),
    "none": (None, KEY, ["no hub answers there"], []),
}


@pytest.mark.parametrize("case", AT_A_DRIVER)
def test_what_a_driver_finds_at_a_hub_that_it_names(tmp_path, case):
    """What keeps it from asking is told once, and training goes on."""
    listens, key, words, names = AT_A_DRIVER[case]
    hub, port, said = HubProcess(tmp_path, secret=key), free_port(), []
    if listens is not None:
        hub.start(*(["--listen", str(port)] if listens else []))

    def is_so(found):
        send(port, packet("driven"))  # again and again, as an agent does: a packet may be lost
        return len(found.present()) == len(names) and len(notes(said)) == len(words)

    async def act():
        if listens is not None:
            await hub.order("status")
        driver = discovery(tmp_path, str(hub.target), said)
        return await found_by(driver, is_so, 2.0 if listens is False else 0.0)

    try:
        assert asyncio.run(act()) == names
    finally:
        if listens is not None:
            hub.kill()
    assert all(word in note for word, note in zip(words, notes(said), strict=True))


def test_a_list_of_nodes_says_that_the_hub_was_not_asked(tmp_path, monkeypatch, capsys, caplog):
    """Where people look, beside a list that would be empty without a word."""
    monkeypatch.setattr(node_discovery, "LOOKS", 1)
    monkeypatch.chdir(tmp_path)
    main(["key"])
    monkeypatch.setenv("HETERO_HVD_CLUSTER_KEY_FILE", "cluster.key")
    monkeypatch.setenv("HETERO_HVD_HUB", f"127.0.0.1:{free_port()}")
    capsys.readouterr()
    assert main(["nodes", "--discover", "--json"]) == 0
    assert capsys.readouterr().out.strip() == "[]"
    assert "note: nodes that announce themselves to the hub are not found: hub 127" in caplog.text


class OddHub:
    """One that answers something else each time, then what is right."""

    is_named = True
    NUMBER = 7

    def __init__(self, *answers):
        self.answers = list(answers)

    def conversation(self):
        """Talk with it."""
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def order(self, _name, arguments, **_):
        """The next answer."""
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        is_known = arguments["after"] == OddHub.NUMBER
        return {"is_listening": True, "next": OddHub.NUMBER, "adverts": [] if is_known else [b"x"]}


ODD_HUBS = {
    "one of an earlier version": [JobError("'adverts' is no command of this hub; there are start")],
    "one that is away": [TryAgainError("no hub answers there")] * 3,
    "one that begins to take adverts": [{"is_listening": False}] * 2,
    "one that goes on": [{"is_listening": True, "next": 3, "adverts": [b"y"]}],
    "nonsense": [
        "x", [], {"is_listening": 1}, {"is_listening": True, "next": -1},
        {"is_listening": True, "adverts": [b"x" * 5000]},
        {"is_listening": True, "adverts": [b"x"] * 300},
        {"is_listening": True, "hub": "\x1b[31m"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", ODD_HUBS)
def test_a_hub_that_says_something_else_is_asked_again(case, monkeypatch):
    """What is wrong is told once; what it says rightly is taken, and checked as all adverts are."""
    for name in ("ASK_SECONDS", "MORE_SECONDS", "DEAF_SECONDS", "FIRST_RETRY_SECONDS"):
        monkeypatch.setattr(hub_adverts, name, 0.01)
    monkeypatch.setattr(hub_adverts, "MAX_RETRY_SECONDS", 0.02)
    answers, said, found = ODD_HUBS[case], [], []

    async def act():
        adverts = HubAdverts(OddHub(*answers), said.append)
        adverts.begin()
        async with asyncio.timeout(20):
            while not any(text == b"x" for _, text in found):
                await asyncio.sleep(0.01)
                found.extend(adverts.take())
        await asyncio.sleep(0.1)
        found.extend(adverts.take())
        await adverts.close()

    asyncio.run(act())
    is_wrong = case not in ("one that begins to take adverts", "one that goes on")
    assert len(said) == is_wrong, said
    assert [text for _, text in found] == ([b"y"] if case == "one that goes on" else []) + [b"x"]


AWAY, CLOSED = TryAgainError("no hub answers there"), TryAgainError("no close frame")
SAYS = {"is_listening": True}
FLAPPING = {
    "away": ([AWAY] * 5, 1),
    "there now and then": ([AWAY, SAYS, CLOSED, SAYS] * 5, 2),
    "away in two ways": ([AWAY, CLOSED] * 5, 2),
    "another key, later": ([AWAY, AWAY, JobError("another key")], 2),
    "away in many ways": ([TryAgainError(str(n)) for n in range(20)], hub_adverts.MAX_NOTES),
}


@pytest.mark.parametrize("case", FLAPPING)
@pytest.mark.parametrize("is_named", [True, False])
def test_people_are_told_once_of_each_cause(case, is_named, monkeypatch):
    """Of a hub that they have named; also of one that comes and goes."""
    answers, number = FLAPPING[case]
    monkeypatch.setattr(hub_adverts, "jittered", lambda *_: 0.0)
    monkeypatch.setattr(hub_adverts, "ASK_SECONDS", 0.0)
    hub, said = OddHub(*answers), []
    hub.is_named = is_named

    async def act():
        adverts = HubAdverts(hub, said.append)
        adverts.begin()

        async def is_answered():
            return adverts.take()

        await until(is_answered)
        await adverts.close()

    asyncio.run(act())
    assert len(said) == (number if is_named else 0)
    assert len(set(said)) == len(said)


def test_a_hub_that_only_refuses_is_asked_ever_less_often(monkeypatch):
    """A conversation that begins well is no answer: the pauses grow until there is one."""
    longest = []

    def pause(_first, longest_seconds, _chance):
        longest.append(longest_seconds)
        return 0.0

    monkeypatch.setattr(hub_adverts, "jittered", pause)

    async def act():
        adverts = HubAdverts(OddHub(*[JobError("no command of this hub")] * 6), lambda _: None)
        adverts.begin()
        found = []
        async with asyncio.timeout(20):
            while not found:
                await asyncio.sleep(0.01)
                found.extend(adverts.take())
        await adverts.close()

    asyncio.run(act())
    assert longest[:6] == [2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
