"""Horovod's ElasticDriver, taught to adopt workers that already run. Our only use of it here.

What is changed, and why (Horovod 0.28.1, `horovod/runner/elastic/`):
- `driver.py:188-208` looks for hosts once a second and tells about a change once, and only rank 0;
  a message that comes while a worker resets is lost for ever. Here: five times a second, and again
  until the membership is as wanted.
- `driver.py:189` takes new hosts in the order of a Python set; here in the order of nodes.yaml.
- `registration.py:74-113` lets anybody count as a party of the barrier; here members only, and each
  once: one whose process is recorded as dead may still live, and come.
- `driver.py:111-115` leaves threads waiting for ever when a job is stopped; here `close` ends them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.registration import FAILURE, READY, WorkerStateRegistry
from horovod.runner.elastic.worker import HostUpdateResult

from hetero_hvd.driver.membership.rendezvous import Rendezvous

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2


class LiveHosts(HostDiscovery):  # type: ignore[misc] # Horovod has no types
    """Horovod's view of the workers: each that is ready is a host of its own with one slot.

    So a dead worker costs its own slot only, and as each restart has a new name, Horovod's
    blacklist, which it never forgets, does not matter.

    Args:
        available: Called in Horovod's thread; names of the ready and living workers, in the order
            in which new ones get their ranks.
    """

    def __init__(self, available: Callable[[], tuple[str, ...]]) -> None:
        super().__init__()
        self._available = available

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Called by Horovod at each tick; it needs a new dict each time to see a change."""
        return dict.fromkeys(self._available(), 1)


class MembersOnly(WorkerStateRegistry):  # type: ignore[misc] # Horovod has no types
    """Horovod's barrier, without strangers and the dead: who asked again completed it early."""

    def _record_state(self, host: str, slot: int, state: str) -> int:
        self._action_event.wait()
        rendezvous_id: int = self.last_rendezvous()
        if self._driver.has_rank_assignment(host, slot):
            rendezvous_id = super()._record_state(host, slot, state)
        return rendezvous_id

    def _wait(self, key: tuple[str, int], state: str, rendezvous_id: int) -> int:
        if state == READY and self._states.get(key) == FAILURE:  # its death is in the barrier
            raise RuntimeError(f"{key[0]} is recorded as dead")
        return int(super()._wait(key, state, rendezvous_id))

    def release(self) -> None:
        """End every wait at the barrier; the job is over."""
        if self._barrier is not None:
            self._barrier.abort()


def horovod_environment(
    place: Any,  # noqa: ANN401
    *,
    rendezvous: tuple[str, int],
    interface: str,
    gloo_timeout_seconds: int,
) -> dict[str, str]:
    """The variables with which a worker enters its first rendezvous.

    Args:
        place: Horovod's SlotInfo.
        rendezvous: Address and port of our server, as seen from the worker.
        interface: The worker's network interface for Gloo and NCCL.
        gloo_timeout_seconds: Longest wait inside one collective.
    """
    return {
        "HOROVOD_HOSTNAME": str(place.hostname),
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous[1]),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_LOG_LEVEL": os.environ.get("HOROVOD_LOG_LEVEL", "fatal"),  # we tell of the rest
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout_seconds),
    }


class AdoptingDriver(ElasticDriver):  # type: ignore[misc] # Horovod has no types
    """Decides who is a member; the processes belong to somebody else.

    The callbacks are called in Horovod's threads.

    Args:
        rendezvous: Our server.
        available: See `LiveHosts`.
        min_np: Fewest workers.
        max_np: Most workers; None for all.
        num_held: Called in Horovod's threads; so many of those who are available should leave once
            others have taken over, and count beyond `max_np`.
        elastic_timeout_seconds: Longest wait for `min_np` workers.
        on_change: Called at each tick while the membership is not as wanted, with the names of
            those who should join and of those who should leave.
        on_stop: Called once when Horovod regards the job as over, with its reason if it has one.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        available: Callable[[], tuple[str, ...]],
        *,
        min_np: int,
        max_np: int | None,
        num_held: Callable[[], int] = lambda: 0,
        elastic_timeout_seconds: float,
        on_change: Callable[[set[str], set[str]], None],
        on_stop: Callable[[str | None], None],
    ) -> None:
        self._available = available
        self._max_np = max_np
        self._num_held = num_held
        self._on_change = on_change
        self._on_stop = on_stop
        self._wake = threading.Event()
        self._is_stopped = threading.Event()
        super().__init__(
            rendezvous, LiveHosts(available), min_np, max_np, timeout=elastic_timeout_seconds
        )
        self._worker_registry = MembersOnly(self, self._host_manager)

    def start_training(self, adopt: Callable[[Any], int]) -> None:
        """Make members of those who are available. Blocks until there are `min_np`.

        Args:
            adopt: Called with Horovod's SlotInfo in a thread of its own for each new member; admits
                the worker, waits for its process to end and returns the exit code.
        """
        self.start(self._min_num_proc, lambda slot, _events: (adopt(slot), time.time()))

    def wait_for_rank(self, host: str, slot: int) -> bytes:
        """Block in the barrier, then give the new place; see `rendezvous.Barrier`.

        Raises:
            RuntimeError: The barrier was given up, or the worker was recorded as dead.
        """
        self.record_ready(host, slot)
        if self.finished():
            raise RuntimeError("the job is over")
        place: str = self.get_slot_info(host, slot).to_response_string()
        return place.encode("ascii")

    def hosts_changed(self) -> None:
        """Look at the hosts now instead of at the next tick."""
        self._wake.set()

    def stop(self, error_message: str | None = None) -> None:
        """Called by Horovod when all workers have ended, or by `close`."""
        self._wake.set()
        super().stop(error_message)
        with self._wait_hosts_cond:
            self._wait_hosts_cond.notify_all()
        if not self._is_stopped.is_set():
            self._is_stopped.set()
            self._on_stop(error_message)

    def close(self) -> None:
        """Stop, and end the threads that wait for workers who will not come."""
        self.stop()
        self._worker_registry.release()

    def _discover_hosts(self) -> None:
        while not self.finished():
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()
            with self._wait_hosts_cond:
                if self._update_hosts():
                    self._wait_hosts_cond.notify_all()
                self._notify_workers_host_changes(
                    self._host_manager.current_hosts, HostUpdateResult.mixed
                )

    def _update_hosts(self) -> bool:
        before = self._host_manager.current_hosts.host_assignment_order
        wanted_order = {host: place for place, host in enumerate((*before, *self._available()))}
        wanted_order.update({host: place for place, host in enumerate(before)})
        update = self._host_manager.update_available_hosts()
        order = self._host_manager.current_hosts.host_assignment_order
        order.sort(key=lambda host: wanted_order.get(host, len(wanted_order)))
        return bool(update != HostUpdateResult.no_update)

    def _get_host_assignments(self, current_hosts: Any) -> Any:  # noqa: ANN401
        """Who should be a member; those who come have to meet those whose places they take."""
        if self._max_np is not None:
            self._max_num_proc = self._max_np + self._num_held()
        return super()._get_host_assignments(current_hosts)

    def _notify_workers_host_changes(self, current_hosts: Any, update_res: Any) -> None:  # noqa: ANN401, ARG002
        if not self.host_assignments:
            return
        if current_hosts.count_available_slots() < self._min_num_proc:
            return  # too few would be left: go on with those who are there
        wanted, _ = self._get_host_assignments(current_hosts)
        if wanted != self.host_assignments:
            current = set(self.host_assignments)
            self._on_change(set(wanted) - current, current - set(wanted))

    def _handle_worker_exit(self, slot_info: Any, exit_code: int, timestamp: float) -> None:  # noqa: ANN401
        try:
            super()._handle_worker_exit(slot_info, exit_code, timestamp)
        except (threading.BrokenBarrierError, RuntimeError) as error:
            logger.info("%s: nobody waits for its end any more (%r)", slot_info.hostname, error)
