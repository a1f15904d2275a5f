"""The worker's end of the channel, against a real server."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from hetero_hvd import channel
from hetero_hvd.errors import ChannelError, WorkerLostError
from hetero_hvd.messages import (
    Admit,
    BatchPlan,
    Finished,
    Heartbeat,
    Ready,
    ResetRequested,
    StepsTimed,
    Stop,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.messages.launch import WorkerIdentity, WorkerLaunch
from hetero_hvd.worker.session.driver_client import DriverClient
from hetero_hvd.worker.session.launch_settings import LaunchSettings
from hetero_hvd.worker.session.plan_source import DriverPlanner

WORKER = WorkerId("alpha", 0)
FINISHED = Finished(worker=WORKER, applied_steps=1, checksum="")
PATIENCE_SECONDS = 20


class Driver:
    """The driver's end: keeps what arrives, sends what it is told."""

    def __init__(self, key, port=0, close_code=0):
        self.key = key
        self._close_code = close_code
        self.sessions = queue.Queue()
        self.received = queue.Queue()
        self._server = serve(self._talk, "127.0.0.1", port)
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _talk(self, connection):
        nonce = channel.challenge()
        connection.send(nonce)
        try:
            _, proof, session = channel.accept(self.key, nonce, connection.recv())
            connection.send(proof)
            if self._close_code:
                connection.close(self._close_code)
            self.sessions.put((connection, session))
            for frame in connection:
                self.received.put(session.open(frame))
        except (ChannelError, ConnectionClosed) as error:
            self.received.put(error)

    def next_connection(self):
        """The next worker's connection and session."""
        return self.sessions.get(timeout=PATIENCE_SECONDS)

    def next_of(self, kind):
        """The next record of a kind; others before it are dropped."""
        while True:
            found = self.received.get(timeout=PATIENCE_SECONDS)
            if isinstance(found, kind):
                return found

    def close(self):
        """End the server and all its connections."""
        self._server.shutdown()
        self._thread.join()


@pytest.fixture
def start():
    """Make drivers and clients that end with the test."""
    made = []

    def start(kind, *arguments, **named):
        made.append(kind(*arguments, **named))
        return made[-1]

    yield start
    for thing in reversed(made):
        thing.close()
    assert not [t for t in threading.enumerate() if t.name == "driver-channel"]


def settings(port, key):
    """Where the client of these tests is."""
    identity = WorkerIdentity(worker=WORKER, host="alpha-0", driver=("127.0.0.1", port))
    return LaunchSettings(launch=WorkerLaunch(identity=identity), key=key)


def pair(start, **more):
    """A driver and a client that have met; the client is given more, such as `on_void`."""
    driver = start(Driver, channel.new_key())
    client = start(DriverClient, settings(driver.port, driver.key), progress=lambda: 42, **more)
    connection, session = driver.next_connection()
    return driver, client, lambda message: connection.send(session.seal(message))


def plan(rendezvous_id):
    """Any plan of a rendezvous."""
    return BatchPlan(
        rendezvous_id=rendezvous_id,
        plan_id=1,
        from_step=0,
        exchange_steps=1,
        workers=(WORKER,),
        local_batch_sizes=(8,),
        reason="",
    )


def wait_for(condition):
    """Look until it holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_it_says_that_it_is_ready_and_alive_and_waits_to_be_admitted(start):
    """First who and where it is, then its progress; admission brings its Horovod environment."""
    driver, client, tell = pair(start)
    first = driver.received.get(timeout=PATIENCE_SECONDS)
    assert isinstance(first, Ready)
    assert (first.worker, first.host, first.interface) == (WORKER, "alpha-0", "lo")
    assert driver.next_of(Heartbeat).applied_steps == 42
    tell(Admit(environment={"HOROVOD_RANK": "0"}, rendezvous_id=3))
    assert client.wait_for_admission().rendezvous_id == 3


def test_it_keeps_what_the_driver_wants(start):
    """The newest plan, a wish for a new membership, the order to leave."""
    _, client, tell = pair(start)
    tell(plan(1))
    tell(plan(2))
    tell(ResetRequested(reason="a node came"))
    tell(Stop(reason="enough"))
    wait_for(lambda: client.stop is not None)
    assert client.plan == plan(2)
    assert client.reset_requested


def test_a_worker_that_is_not_wanted_is_told_while_it_waits(start):
    """The driver's reason ends the wait for admission."""
    _, client, tell = pair(start)
    tell(Stop(reason="the job is over"))
    with pytest.raises(WorkerLostError, match="the job is over"):
        client.wait_for_admission()


def test_it_waits_for_a_plan_of_its_membership_only(start):
    """A plan for another rendezvous is not taken for an answer; the wait is bounded."""
    _, client, tell = pair(start)
    tell(plan(1))
    began = time.monotonic()
    assert client.wait_for_plan(2, timeout_seconds=0.2) is None
    assert 0.2 <= time.monotonic() - began < 5
    tell(plan(2))
    assert client.wait_for_plan(2, timeout_seconds=PATIENCE_SECONDS) == plan(2)


def test_out_of_reach_it_drops_and_comes_back(start):
    """Nothing that trains is held up; when the driver is there again, so is the worker."""
    driver, client, _ = pair(start)
    driver.next_of(Ready)
    wait_for(lambda: client.send(FINISHED))
    driver.close()
    wait_for(lambda: not client.send(FINISHED))
    again = start(Driver, driver.key, driver.port)
    again.next_connection()
    assert isinstance(again.received.get(timeout=PATIENCE_SECONDS), Ready)
    wait_for(lambda: client.send(FINISHED))
    assert again.next_of(Finished) == FINISHED


def test_a_driver_with_another_key_is_never_obeyed(start):
    """The worker's proof is refused, and it tries again, in vain."""
    driver = start(Driver, channel.new_key())
    client = start(DriverClient, settings(driver.port, channel.new_key()), progress=lambda: 0)
    for _ in range(2):
        assert "does not hold this job's key" in str(driver.next_of(ChannelError))
    assert not client.send(FINISHED)


def test_a_forged_frame_breaks_the_connection_and_only_that(start):
    """What it orders is not done; the worker connects anew."""
    driver = start(Driver, channel.new_key())
    client = start(DriverClient, settings(driver.port, driver.key), progress=lambda: 0)
    connection, _ = driver.next_connection()
    connection.send(bytes(channel.MAC_BYTES) + b"stop")
    connection, session = driver.next_connection()
    connection.send(session.seal(plan(1)))
    assert client.wait_for_plan(1, timeout_seconds=PATIENCE_SECONDS) == plan(1)
    assert client.stop is None


def test_without_the_driver_rank_0_goes_on_with_the_last_plan(start):
    """The last plan stays the newest, tables are dropped, a new membership starts evenly."""
    driver, client, tell = pair(start)
    planner = DriverPlanner(client)
    tell(plan(1))
    assert client.wait_for_plan(1, timeout_seconds=PATIENCE_SECONDS)
    driver.close()
    wait_for(lambda: not client.send(FINISHED))
    began = time.monotonic()
    planner.timed(
        StepsTimed(rendezvous_id=1, step=3, epoch=0, loss=0.0, timings=(), exchange_seconds=0.0)
    )
    assert planner.newest() == plan(1)
    members = (WORKER, WorkerId("beta", 0))
    first = planner.joined(
        WorkersJoined(
            rendezvous_id=2,
            workers=members,
            applied_steps=4,
            global_batch_size=9,
            capacities=(-1, 3),
            prefetch_steps=0,
        )
    )
    assert (first.workers, first.local_batch_sizes) == (members, (6, 3))
    assert first.from_step == 4
    assert time.monotonic() - began < PATIENCE_SECONDS / 4
