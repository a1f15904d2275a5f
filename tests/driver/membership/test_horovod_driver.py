"""Horovod's own driver with our changes; threads stand for the workers' processes."""

import threading

import pytest

from hetero_hvd.driver.membership.horovod_driver import AdoptingDriver, horovod_environment
from tests.driver.conftest import wait_until


class Store:
    """What Horovod's driver needs of a rendezvous server: it notes each membership."""

    def __init__(self):
        self.memberships = []

    def init(self, members):
        """A new membership, in rank order."""
        self.memberships.append([member.hostname for member in members])

    def stop(self):
        """The job is over."""


class Cluster:
    """A driver and the workers that it adopts."""

    def __init__(self, hosts, **settings):
        self.hosts = tuple(hosts)
        self.store = Store()
        self.ends = {}
        self.changes = []
        self.stopped = threading.Event()
        self.driver = AdoptingDriver(
            self.store,
            lambda: self.hosts,
            elastic_timeout_seconds=5,
            on_change=lambda joining, leaving: self.changes.append((joining, leaving)),
            on_stop=lambda _: self.stopped.set(),
            **{"min_np": 1, "max_np": None, **settings},
        )

    def adopt(self, place):
        """A worker's life: until the test says how it ends."""
        end = self.ends[place.hostname] = {"event": threading.Event(), "code": 0}
        end["event"].wait(10)
        return end["code"]

    def start(self):
        """Admit the workers."""
        self.driver.start_training(self.adopt)
        wait_until(lambda: len(self.ends) == len(self.store.memberships[-1]), 5, "adoption")

    def end(self, host, code):
        """A worker's process ends."""
        self.hosts = tuple(other for other in self.hosts if other != host)
        self.ends[host]["code"] = code
        self.ends[host]["event"].set()

    def meet(self, *hosts):
        """Workers ask for their rank; gives the answers of those that got one within the time."""
        answers = {}

        def ask(host):
            try:
                answers[host] = self.driver.wait_for_rank(host, 0).decode()
            except RuntimeError as error:
                answers[host] = error

        threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in hosts]
        for thread in threads:
            thread.start()
        return threads, answers


@pytest.fixture
def cluster():
    """Makes clusters and closes them; no thread of theirs may be left."""
    before = set(threading.enumerate())
    made = []

    def make(*hosts, **settings):
        made.append(Cluster(hosts, **settings))
        return made[-1]

    yield make
    for one in made:
        one.driver.close()
        for end in one.ends.values():
            end["event"].set()
    wait_until(lambda: set(threading.enumerate()) <= before, 5, "the end of all threads")


def test_ranks_follow_the_order_of_the_nodes_file(cluster):
    """Not the order of a Python set, which is another one in each process."""
    names = [f"node{number}-0" for number in range(20)]
    one = cluster(*names)
    one.start()
    assert one.store.memberships == [names]


def test_old_members_keep_the_lower_ranks(cluster):
    """A worker that joins stands behind all who have state, wherever nodes.yaml has it."""
    one = cluster("b-0", "c-0")
    one.start()
    one.hosts = ("a-0", "b-0", "c-0")
    one.driver.hosts_changed()
    wait_until(lambda: one.changes, 5, "the wish to change")
    assert one.changes[0] == ({"a-0"}, set())
    threads, answers = one.meet("b-0", "c-0")
    for thread in threads:
        thread.join(5)
    assert one.store.memberships[-1] == ["b-0", "c-0", "a-0"]
    assert answers == {"b-0": "0,3,0,1,0,3", "c-0": "1,3,0,1,1,3"}


def test_a_wish_is_repeated_until_it_is_fulfilled(cluster):
    """Horovod tells once, and a worker in the middle of a reset does not hear it."""
    one = cluster("a-0", "b-0")
    one.start()
    assert one.changes == []
    one.hosts = ("a-0", "b-0", "c-0")
    wait_until(lambda: len(one.changes) >= 3, 5, "three requests")
    assert set(map(repr, one.changes)) == {repr(({"c-0"}, set()))}


def test_nobody_is_let_go_below_min_np(cluster):
    """A removal that would leave too few is not asked for."""
    one = cluster("a-0", "b-0", min_np=2)
    one.start()
    one.hosts = ("a-0",)
    one.driver.hosts_changed()
    looked = threading.Event()
    one.driver._available = lambda: looked.set() or ("a-0",)  # the next look at the hosts
    assert looked.wait(5)
    assert one.changes == []


def test_a_dead_worker_is_replaced_under_its_new_name(cluster):
    """Its old name is on Horovod's blacklist for ever, its new one is not."""
    one = cluster("a-0", "b-0")
    one.start()
    one.end("b-0", 137)
    threads, answers = one.meet("a-0")
    threads[0].join(5)
    assert answers == {"a-0": "0,1,0,1,0,1"}
    one.hosts = ("a-0", "b-0.r1")
    wait_until(lambda: one.changes, 5, "the wish to change")
    threads, _ = one.meet("a-0")
    threads[0].join(5)
    assert one.store.memberships[-1] == ["a-0", "b-0.r1"]
    wait_until(lambda: "b-0.r1" in one.ends, 5, "adoption")


def test_a_stranger_does_not_count_in_the_barrier(cluster):
    """Neither one never seen nor a removed worker completes the barrier for an absent member."""
    one = cluster("a-0", "b-0")
    one.start()
    threads, answers = one.meet("a-0")
    strangers, told = one.meet("mallory-0", "c-0")
    for thread in strangers:
        thread.join(5)
    assert told == {"mallory-0": "-1,-1,-1,-1,-1,-1", "c-0": "-1,-1,-1,-1,-1,-1"}
    assert threads[0].is_alive()
    others, _ = one.meet("b-0")
    for thread in threads + others:
        thread.join(5)
    assert answers == {"a-0": "0,2,0,1,0,2"}


@pytest.mark.parametrize("is_recorded_first", [True, False], ids=["dead-first", "ready-first"])
def test_a_worker_whose_process_is_lost_counts_once(cluster, is_recorded_first):
    """One that still lives, behind an agent that does not answer, does not stand for another."""
    one = cluster("a-0", "b-0")
    one.start()
    registry = one.driver._worker_registry
    recorded = threading.Event()
    wait = registry._wait

    def note(key, state, rendezvous_id):
        recorded.set()
        return wait(key, state, rendezvous_id)

    registry._wait = note
    if is_recorded_first:
        one.end("b-0", 255)
        assert recorded.wait(5)
        zombie, told = one.meet("b-0")
    else:
        zombie, told = one.meet("b-0")
        assert recorded.wait(5)
        one.end("b-0", 255)
    zombie[0].join(5)
    assert isinstance(told["b-0"], RuntimeError)
    assert not one.stopped.is_set()
    healthy, answers = one.meet("a-0")
    healthy[0].join(5)
    assert answers == {"a-0": "0,1,0,1,0,1"}
    assert not one.stopped.is_set()


def test_the_job_is_over_when_all_have_ended(cluster):
    """One that ends well stops the job, once every other has been recorded."""
    one = cluster("a-0", "b-0")
    one.start()
    one.end("a-0", 0)
    assert not one.stopped.wait(0.3)
    one.end("b-0", 137)
    assert one.stopped.wait(5)


def test_closing_ends_those_who_wait(cluster):
    """A worker that waits for others who will not come is not left hanging, nor is a thread."""
    one = cluster("a-0", "b-0")
    one.start()
    threads, answers = one.meet("a-0")
    wait_until(one.driver._worker_registry.get_recorded_slots, 5, "the first")
    one.driver.close()
    threads[0].join(5)
    assert isinstance(answers["a-0"], RuntimeError)


def test_the_environment_of_the_first_rendezvous():
    """All that Horovod's C++ side reads, for one slot on a host of its own."""
    place = type("Place", (), {"hostname": "a-0", "rank": 1, "size": 3, "local_rank": 0})
    place.local_size = 1
    place.cross_rank = 1
    place.cross_size = 3
    environment = horovod_environment(
        place, rendezvous=("10.0.0.1", 4000), interface="eth1", gloo_timeout_seconds=7
    )
    assert environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
    assert environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "4000"
    assert environment["HOROVOD_GLOO_IFACE"] == environment["NCCL_SOCKET_IFNAME"] == "eth1"
    assert environment["HOROVOD_RANK"] == environment["HOROVOD_CROSS_RANK"] == "1"
    assert environment["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "7"
