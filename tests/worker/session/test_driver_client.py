"""The worker's end of the channel, against a real server."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from hetero_hvd import channel
from hetero_hvd.driver.workers.credentials import Credentials
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
from hetero_hvd.security.tls import server_context
from hetero_hvd.worker.session.driver_client import DriverClient
from hetero_hvd.worker.session.launch_settings import LaunchSettings
from hetero_hvd.worker.session.plan_source import DriverPlanner

WORKER = WorkerId("alpha", 0)
FINISHED = Finished(worker=WORKER, applied_steps=1, checksum="")
PATIENCE_SECONDS = 20


class Driver:
    """The driver's end: keeps what arrives, sends what it is told."""

    def __init__(self, job=None, port=0, close_code=0):
        self.job = job or Credentials()
        self._close_code = close_code
        self.connections = queue.Queue()
        self.received = queue.Queue()
        self._server = serve(self._talk, "127.0.0.1", port, ssl=self.job.tls)
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _talk(self, connection):
        try:
            if self._close_code:
                connection.close(self._close_code)
            self.connections.put(connection)
            for frame in connection:
                self.received.put(channel.from_worker(frame))
        except (ChannelError, ConnectionClosed) as error:
            self.received.put(error)

    def next_connection(self):
        """The next worker's connection."""
        return self.connections.get(timeout=PATIENCE_SECONDS)

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


def settings(port, job):
    """Where the client of these tests is."""
    identity = WorkerIdentity(worker=WORKER, host="alpha-0", driver=("127.0.0.1", port))
    bundle = job.for_worker("alpha-0")["HETERO_HVD_TLS"].encode()
    return LaunchSettings(launch=WorkerLaunch(identity=identity), tls=bundle)


def pair(start, **more):
    """A driver and a client that have met; the client is given more, such as `on_void`."""
    driver = start(Driver)
    client = start(DriverClient, settings(driver.port, driver.job), progress=lambda: 42, **more)
    connection = driver.next_connection()
    return driver, client, lambda message: connection.send(channel.encode(message))


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
    leaving = (WorkerId("north", 0),)
    tell(ResetRequested(reason="a node came", leaving=leaving))
    tell(Stop(reason="enough"))
    wait_for(lambda: client.stop is not None)
    assert client.plan == plan(2)
    assert client.reset_requested
    assert client.leaving == leaving


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
    again = start(Driver, driver.job, driver.port)
    again.next_connection()
    assert isinstance(again.received.get(timeout=PATIENCE_SECONDS), Ready)
    wait_for(lambda: client.send(FINISHED))
    assert again.next_of(Finished) == FINISHED


class SameJob:
    """The worker's own certificate on the driver's side."""

    def __init__(self, job):
        self.tls = server_context(job.for_worker("alpha-0")["HETERO_HVD_TLS"].encode())


FALSE_DRIVERS = {"of another job": lambda _: Credentials(), "another worker": SameJob}


@pytest.mark.parametrize("false", FALSE_DRIVERS.values(), ids=FALSE_DRIVERS)
def test_a_false_driver_is_never_obeyed(start, false, caplog):
    """It is told nothing; the worker tries again, in vain."""
    job = Credentials()
    driver = start(Driver, false(job))
    client = start(DriverClient, settings(driver.port, job), progress=lambda: 0)
    wait_for(lambda: caplog.text.count("certificate verify failed") >= 2)
    assert not client.send(FINISHED)
    assert driver.received.empty()


def test_a_driver_that_does_not_know_this_worker_is_not_obeyed(start, caplog):
    """It is the driver, but sees a certificate that is not of its job: the worker says why."""
    driver = start(Driver)
    stranger = settings(driver.port, Credentials())
    ours = driver.job.for_worker("alpha-0")["HETERO_HVD_TLS"].encode()
    mixed = stranger.tls[: stranger.tls.rindex(b"-----BEGIN")] + ours[ours.rindex(b"-----BEGIN") :]
    client = start(DriverClient, replace(stranger, tls=mixed), progress=lambda: 0)
    wait_for(lambda: caplog.text.count("no channel to the driver") >= 2)
    assert not client.send(FINISHED)
    assert driver.received.empty()


def test_a_frame_that_is_no_record_breaks_the_connection_and_only_that(start):
    """The worker connects anew."""
    driver = start(Driver)
    client = start(DriverClient, settings(driver.port, driver.job), progress=lambda: 0)
    driver.next_connection().send(b"stop")
    driver.next_connection().send(channel.encode(plan(1)))
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
