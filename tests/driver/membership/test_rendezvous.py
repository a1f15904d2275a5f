"""The rendezvous server, spoken to over raw sockets as a worker or a stranger would."""

import asyncio
import threading
from dataclasses import dataclass

import pytest

from hetero_hvd.driver.membership import rendezvous
from hetero_hvd.driver.membership.rendezvous import NOT_A_MEMBER, Rendezvous
from hetero_hvd.security import descriptors


@dataclass
class Place:
    """What Horovod says of a member."""

    hostname: str


class Gate:
    """A barrier with the driver's rules: complete when every expected host is counted."""

    def __init__(self, hosts):
        self.counted = []
        self.opened = threading.Event()
        self.is_finished = False
        self._hosts = hosts

    def finished(self):
        """See `rendezvous.Barrier`."""
        return self.is_finished

    def has_rank_assignment(self, host, slot):
        """See `rendezvous.Barrier`."""
        return host in self._hosts and slot == 0

    def wait_for_rank(self, host, slot):  # noqa: ARG002 - the protocol's
        """See `rendezvous.Barrier`."""
        self.counted.append(host)
        if len(self.counted) == len(self._hosts):
            self.opened.set()
        if not self.opened.wait(5):
            raise RuntimeError("never complete")
        return f"{self._hosts.index(host)},{len(self._hosts)},0,1,0,1".encode()


async def ask(port, text, *, end=False):
    """Send bytes; returns status and body. `end` closes our side after sending."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        if end:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else None), body


def get(path):
    """A request as Horovod's client sends it."""
    return f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def put(path, body):
    """A request as Horovod's client sends it."""
    return f"PUT /{path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def serve(scenario, hosts=("alpha-0", "beta-0"), *, is_trusted=True, **more):
    """Run a scenario against a server with these members."""

    async def run():
        server = Rendezvous(**more)
        gate = Gate(list(hosts))
        server.attach(gate)
        port = await server.listen("127.0.0.1", "alpha-0")
        if is_trusted:
            server.allow("127.0.0.1")
        server.init([Place(host) for host in hosts])
        await asyncio.sleep(0)  # `init` comes from another thread and is done by the loop
        try:
            await scenario(server, gate, port)
        finally:
            server.close()

    asyncio.run(run())


def test_a_get_waits_for_its_put():
    """A key that is not there yet is answered as soon as it is, not by a 404 to poll again."""

    async def scenario(server, gate, port):  # noqa: ARG001
        waiting = asyncio.create_task(ask(port, get("global0/1")))
        assert await ask(port, put("global0/1", b"\x00address\xff")) == (200, b"")
        assert await waiting == (200, b"\x00address\xff")
        assert await ask(port, get("global0/1")) == (200, b"\x00address\xff")

    serve(scenario)


def test_what_all_ranks_store_comes_at_once(monkeypatch):
    """One answer when the last one has stored it; a 404 where each has to be asked for.

    For more ranks than there are members, or where they have stored unequal lengths.
    """
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.3)

    async def scenario(server, gate, port):  # noqa: ARG001
        early = asyncio.create_task(ask(port, get("global_/all.2")))
        await asyncio.sleep(0.01)
        await ask(port, put("global_/1", b"of 1"))
        assert not early.done()
        await ask(port, put("global_/0", b"of 0"))
        assert await early == (200, b"of 0of 1")
        assert await ask(port, get("global_/all.2")) == (200, b"of 0of 1")
        assert (await ask(port, get("global_/all.3")))[0] == 404
        await ask(port, put("set_/0", b"long"))
        await ask(port, put("set_/1", b"longer"))
        assert (await ask(port, get("set_/all.2")))[0] == 404
        met = server.met(7)
        assert (met.rendezvous_id, met.num_requests) == (7, 8)
        assert server.met(7).num_requests == 0  # told already
        waiting = asyncio.create_task(ask(port, get("other_/all.2")))
        await asyncio.sleep(0.01)
        server.invalidate("beta-0")
        assert await waiting == (200, b"")

    serve(scenario)


def test_whether_members_get_on_with_meeting_can_be_told(monkeypatch):
    """What they give and get counts; that they ask in vain, or are refused, does not."""
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.05)

    async def scenario(server, gate, port):  # noqa: ARG001
        found = [server.useful_at_seconds]
        for request in (get("global/1"), put("global/1", b"x"), get("global/1")):
            await ask(port, request)
            found.append(server.useful_at_seconds)
        server.invalidate("alpha-0")
        await ask(port, get("global/1"))
        assert found[0] == found[1] < found[2] < found[3] == server.useful_at_seconds

    serve(scenario)


def test_a_key_that_never_comes_is_not_found(monkeypatch):
    """Horovod's client then asks again until its own timeout, as with its own server."""
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.05)

    async def scenario(server, gate, port):  # noqa: ARG001
        assert await ask(port, get("global0/1")) == (404, b"")
        assert server.refused == 0

    serve(scenario)


def test_a_new_membership_empties_the_store(monkeypatch):
    """Addresses of an earlier rendezvous must not be met in the next; its waiters are refused."""
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.05)

    async def scenario(server, gate, port):  # noqa: ARG001
        await ask(port, put("global0/0", b"old"))
        waiting = asyncio.create_task(ask(port, get("global0/1")))
        await asyncio.sleep(0.02)
        server.init([Place("alpha-0")])
        assert await waiting == (200, b"")  # no address: Horovod gives up at once
        assert await ask(port, get("global0/0")) == (404, b"")

    serve(scenario)


LATE = {
    "removed": lambda server: server.init([Place("alpha-0")]),
    "its process is gone": lambda server: server.gone("beta-0"),
}


@pytest.mark.parametrize("end", LATE.values(), ids=LATE.keys())
def test_what_comes_late_from_a_former_member_reaches_nobody(end):
    """It hears no addresses, and what it puts is dropped: an error would let it try again."""

    async def scenario(server, gate, port):  # noqa: ARG001
        beta = await server.listen("127.0.0.1", "beta-0")
        assert await ask(beta, put("global0/1", b"first")) == (200, b"")
        assert await ask(port, get("global0/1")) == (200, b"first")
        end(server)
        await asyncio.sleep(0)
        assert await ask(beta, put("global0/2", b"late")) == (200, b"")
        assert await ask(beta, get("global0/2")) == (200, b"")
        waiting = asyncio.create_task(ask(port, get("global0/2")))
        assert await ask(port, put("global0/2", b"right")) == (200, b"")
        assert await waiting == (200, b"right")

    serve(scenario)


def test_the_death_of_a_member_refuses_the_rendezvous_under_way():
    """Waiting and later requests are refused; a stranger's death changes nothing."""

    async def scenario(server, gate, port):  # noqa: ARG001
        server.invalidate("gamma-0")
        waiting = asyncio.create_task(ask(port, get("global0/1")))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        server.invalidate("beta-0")
        assert await waiting == (200, b"")  # no address: Horovod gives up at once
        assert await ask(port, get("global0/2")) == (200, b"")

    serve(scenario)


def test_ranks_are_given_when_all_members_are_there():
    """The barrier is the driver's; a worker that asks twice is counted once."""

    async def scenario(server, gate, port):
        beta = await server.listen("127.0.0.1", "beta-0")
        first = asyncio.create_task(ask(port, get("rank_and_size/alpha-0:0")))
        again = asyncio.create_task(ask(port, get("rank_and_size/alpha-0:0")))
        await asyncio.sleep(0.05)
        assert gate.counted == ["alpha-0"]
        assert server.overdue(0.01) == {"beta-0"}
        assert server.overdue(60) == set()
        assert await ask(beta, get("rank_and_size/beta-0:0")) == (200, b"1,2,0,1,0,1")
        assert await first == await again == (200, b"0,2,0,1,0,1")
        assert sorted(gate.counted) == ["alpha-0", "beta-0"]

    serve(scenario)


def test_a_removed_worker_is_told_so_and_not_counted():
    """Horovod's own format for it; an empty answer would make its client believe it has rank 0."""

    async def scenario(server, gate, port):
        gamma = await server.listen("127.0.0.1", "gamma-0")
        server.init([Place("alpha-0"), Place("beta-0"), Place("gamma-0")])
        await asyncio.sleep(0)
        assert await ask(gamma, get("rank_and_size/gamma-0:0")) == (200, NOT_A_MEMBER)
        gate.is_finished = True
        assert await ask(port, get("rank_and_size/alpha-0:0")) == (200, NOT_A_MEMBER)
        assert gate.counted == []

    serve(scenario)


def test_a_member_whose_process_is_gone_gets_no_rank():
    """It may still live where the driver does not reach it; the others do not wait for it."""

    async def scenario(server, gate, port):  # noqa: ARG001
        beta = await server.listen("127.0.0.1", "beta-0")
        server.gone("beta-0")
        assert await ask(beta, get("rank_and_size/beta-0:0")) == (200, NOT_A_MEMBER)
        assert gate.counted == []

    serve(scenario)


HOSTILE = {
    "another member's rank": (get("rank_and_size/beta-0:0"), 403),
    "unknown host in the barrier": (get("rank_and_size/mallory-0:0"), 403),
    "other slot in the barrier": (get("rank_and_size/alpha-0:1"), 403),
    "malformed slot": (get("rank_and_size/alpha-0:x"), 403),
    "no slot": (get("rank_and_size/alpha-0"), 403),
    "worker address to unpickle": (put("worker_addresses/alpha-0:0", b"cos\nsystem\n"), 403),
    "write to the barrier": (put("rank_and_size/alpha-0:0", b"0,1,0,1,0,1"), 403),
    "other method": (b"POST /global0/1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 403),
    "endless path": (get("global0/" + "x" * 9000), 431),
    "long key": (get("global0/" + "x" * 300), 400),
    "more parts": (get("global0/a/b"), 400),
    "no key": (get("global0"), 400),
    "not HTTP": (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    "large body": (b"PUT /global0/1 HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", 413),
    "absurd length": (b"PUT /global0/1 HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 400),
    "negative length": (b"PUT /global0/1 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    "two lengths": (
        b"PUT /global0/1 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        400,
    ),
    "chunks": (b"PUT /global0/1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
}


@pytest.mark.parametrize(("request_bytes", "status"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_a_worker_would_not_send_is_refused(request_bytes, status):
    """Each is answered, counted, reaches neither store nor barrier, and harms nobody."""

    async def scenario(server, gate, port):
        assert await ask(port, request_bytes) == (status, b"")
        assert server.refused == 1
        assert gate.counted == []
        await ask(port, put("global0/0", b"fine"))
        assert await ask(port, get("global0/0")) == (200, b"fine")

    serve(scenario)


def test_a_client_that_says_nothing_is_dropped(monkeypatch):
    """A half-sent request neither blocks others nor stays."""
    monkeypatch.setattr(rendezvous, "READ_SECONDS", 0.05)

    async def scenario(server, gate, port):  # noqa: ARG001
        assert await ask(port, b"GET /global0/1 HT") == (None, b"")
        assert await ask(port, b"PUT /a/b HTTP/1.1\r\nContent-Length: 9\r\n\r\nx") == (None, b"")
        assert await ask(port, b"GET /global0/1 HT", end=True) == (None, b"")

    serve(scenario)


def test_nobody_is_answered_before_a_worker_has_proved_itself_from_there():
    """The address must be one from which a worker that holds the job's key has connected."""

    async def scenario(server, gate, port):  # noqa: ARG001
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read()).startswith(b"HTTP/1.1 403")  # even before a request is read
        writer.close()
        await writer.wait_closed()
        assert server.refused == 1

    serve(scenario, is_trusted=False)


def test_the_store_is_bounded(monkeypatch):
    """A member that writes without end is refused."""
    monkeypatch.setattr(rendezvous, "MAX_STORED_BYTES", 1000)

    async def scenario(server, gate, port):  # noqa: ARG001
        assert (await ask(port, put("global0/0", b"x" * 900)))[0] == 200
        assert (await ask(port, put("global0/0", b"x" * 900)))[0] == 507

    serve(scenario)


PARKED = {
    "keys that never come": lambda number: get(f"global/never{number}"),
    "half a request": lambda _: b"GET /global/0 HT",
    "nothing at all": lambda _: b"",
    "ranks of a member": lambda _: get("rank_and_size/alpha-0:0"),
}


@pytest.mark.parametrize("request_of", PARKED.values(), ids=PARKED.keys())
def test_who_parks_connections_takes_no_descriptors_and_keeps_nobody_out(request_of):
    """The newest takes the place of the oldest; who waits for a rank goes last."""

    async def scenario(server, gate, port):
        beta_port = await server.listen("127.0.0.1", "beta-0")
        beta = asyncio.create_task(ask(beta_port, get("rank_and_size/beta-0:0")))
        while gate.counted != ["beta-0"]:  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.01)
        parked = []
        for number in range(200):
            parked.append(await asyncio.open_connection("127.0.0.1", port))
            parked[-1][1].write(request_of(number))
            if number % 20 == 0:
                await ask(port, put(f"global0/{number}", b"fine"))
                assert await ask(port, get(f"global0/{number}")) == (200, b"fine")
                assert len(server._callers) <= 20
        assert server.refused >= 150
        assert not beta.done()
        gamma = await server.listen("127.0.0.1", "gamma-0")
        others = [
            ask(at, get(f"rank_and_size/{h}-0:0")) for h, at in (("alpha", port), ("gamma", gamma))
        ]
        assert [status for status, _ in await asyncio.gather(*others)] == [200, 200]
        assert await beta == (200, b"1,3,0,1,0,1")
        for _, writer in parked:
            writer.close()

    serve(scenario, ("alpha-0", "beta-0", "gamma-0"), max_descriptors=80)


def test_connections_leave_room_for_everything_else(monkeypatch):
    """Half of the descriptors at most, however few there are; half of these for one address."""
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (256, 256))

    async def scenario():
        callers = Rendezvous(descriptors.limit())._callers
        tasks = [asyncio.current_task()]

        async def come(peer):
            tasks.append(asyncio.current_task())
            callers.came(peer)
            await asyncio.Event().wait()

        for number in range(300):
            asyncio.create_task(come(f"10.0.0.{number % 3}"))  # noqa: RUF006
        await asyncio.sleep(0.1)
        assert len(callers) == 128
        for _ in range(300):
            asyncio.create_task(come("10.0.0.9"))  # noqa: RUF006
        await asyncio.sleep(0.1)
        assert len(callers) <= 128
        assert callers._num_of["10.0.0.9"] <= 64
        for task in tasks[1:]:
            task.cancel()

    asyncio.run(scenario())


def test_the_driver_takes_as_many_descriptors_as_it_may(monkeypatch):
    """Without asking; never more than is of use, and a refusal is no fault."""
    wishes = []
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _, wish: wishes.append(wish))
    endless = descriptors.resource.RLIM_INFINITY
    for limits in ((1024, 4096), (1024, endless), (4096, 4096), (endless, endless)):
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _, now=limits: now)
        descriptors.raise_limit()
    assert wishes == [(4096, 4096), (descriptors.WANTED, endless)]


def test_a_worker_that_is_admitted_again_keeps_its_port():
    """It knows that one; another would be left open for ever."""

    async def scenario(server, _gate, port):
        assert await server.listen("127.0.0.1", "alpha-0") == port
        assert len(server._servers) == 1

    serve(scenario)
