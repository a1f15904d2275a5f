"""The worker's door to Horovod: every collective operation, and nothing that decides anything.

`SingleProcess` is the same for a script that runs alone, for which Horovod need not be installed.
Horovod's `HorovodInternalError` (a peer is gone, or the membership changed under way) becomes
`Interrupted` here, and nowhere else.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from hetero_hvd.core.backoff import doubled
from hetero_hvd.errors import JobError, TransientError, TryAgainError, WorkerLostError
from hetero_hvd.probes.horovod_build import corrections
from hetero_hvd.probes.laps import Laps
from hetero_hvd.worker.accelerator import is_accelerator
from hetero_hvd.worker.comm.instruments import HorovodIntrospection
from hetero_hvd.worker.comm.operation_log import OperationLog
from hetero_hvd.worker.comm.own_connections import OwnConnections
from hetero_hvd.worker.comm.single_process import SingleProcess
from hetero_hvd.worker.comm.staging import StagedSum, Staging

MIN_POLL_SECONDS, MAX_POLL_SECONDS, POLL_RATIO = 0.0002, 0.002, 1 / 32
"""Between two looks at an operation under way: this part of the time waited so far, within bounds.
The `hvd.synchronize` of a stock Horovod would spin on a core that CPU workers need for computing
(75-97 % of it, measured); a look each 0.2 ms takes 2.5 % of a core."""

BROADCAST_CHUNK_BYTES = 64 * 2**20
"""Gloo counts elements in an int; smaller pieces also bound the extra memory."""

MAX_INIT_SECONDS = 600.0
"""How long a worker tries to enter a rendezvous before it gives up."""

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.002, 0.05
"""Between two such tries. The first failure is mostly another loss, which the driver knows of."""

FUSION_VARIABLE, FUSION_BYTES = "HOROVOD_FUSION_THRESHOLD", 2**20
"""Up to so many bytes in all, Horovod copies what is to be summed into one buffer and back. What is
larger it sums where it is; by itself it would copy up to 128 MiB, and keep a buffer of the size."""

Handle = Any
"""An operation under way, as `wait` takes it; it remembers its end, so it can be asked again."""


class Interrupted(TransientError):  # noqa: N818 - control flow, as in Horovod
    """A collective operation broke: a new rendezvous, and on from the last complete step."""


ALONE = -1
"""The number of a sum that Horovod does not know, as there is nobody to add up with."""


class Pending:
    """An operation of one rendezvous.

    Horovod knows its operations by number and forgets how they ended (0.28.1, `torch/mpi_ops.py`):
    after a wait that failed, a second one returns None as if all were well, a look raises
    ValueError, and in the next rendezvous the number belongs to another operation.

    Args:
        number: Horovod's, or `ALONE`.
        generation: Of the rendezvous.

    Attributes:
        result: What a wait returned; None: none has yet.
        fault: Why it broke; empty if it did not.
    """

    __slots__ = ("fault", "generation", "number", "result")

    def __init__(self, number: int, generation: int) -> None:
        self.number = number
        self.generation = generation
        self.result: torch.Tensor | None = None
        self.fault = ""


class Collective(Protocol):
    """What the workers of one rendezvous do together."""

    rank: int
    size: int
    operations: OperationLog
    """Hears of every operation."""

    laps: Laps
    """Of the way from one rendezvous into the next one."""

    def start(self) -> None:
        """Enter the first rendezvous."""

    def restart(self) -> None:
        """Leave this rendezvous and enter the next one; operations under way are dropped."""

    def stop(self) -> None:
        """Leave for good."""

    generation: int
    """Counts the rendezvous that were entered or tried."""

    def cut(self, generation: int | None = None) -> None:
        """Let every operation under way fail; may be called from any thread.

        Args:
            generation: Only if this is still the rendezvous under way.
        """

    def sum_async(self, tensor: torch.Tensor, name: str) -> Handle:
        """Start summing `tensor` over all workers, in place."""

    def gather_rows_async(self, rows: torch.Tensor, name: str) -> Handle:
        """Start concatenating 2-D `rows` of all workers in rank order; `wait` returns them."""

    def wait(self, handle: Handle) -> torch.Tensor:
        """Block until the operation is done; a second call gives the same answer.

        Raises:
            Interrupted: It broke, or its rendezvous is over; what it would have written is
                undefined.
        """

    def is_done(self, handle: Handle) -> bool:
        """Whether `wait` would return, or fail, at once."""

    def start_staged(self) -> None:
        """Start what waits for a device, which takes until that has come so far."""

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> None:
        """Copy rank `root`'s 1-D tensor into everybody's, in place."""

    def exchange(self, rows: torch.Tensor, counts: Sequence[int], name: str) -> torch.Tensor:
        """Send each rank its part of a 1-D tensor; gives what all have sent, in rank order.

        Args:
            rows: The parts, in rank order, on the host.
            counts: Elements for each rank.
            name: Of the operation.
        """


class HorovodCollective:
    """The workers of one Horovod rendezvous.

    Args:
        elastic: Whether a new rendezvous can be entered after a fault.
        is_unwanted: Asked after a failed attempt to enter one: whether to stop trying.
        hvd: What to use as `horovod.torch`; None: the installed one.
    """

    def __init__(
        self,
        *,
        elastic: bool,
        is_unwanted: Callable[[], bool],
        hvd: Any = None,  # noqa: ANN401 - has no types
    ) -> None:
        # Horovod is needed only by those who train together.
        self._hvd = hvd = hvd or importlib.import_module("horovod.torch")
        # As they are now: those that the script finds in the module may refuse it later.
        self._init = hvd.init
        self._shutdown = hvd.shutdown
        self._elastic = elastic
        self._is_unwanted = is_unwanted
        self._spins = "waits-are-woken" not in corrections()
        self.operations = OperationLog(self.is_done)
        self.laps = Laps()
        self.instruments = HorovodIntrospection(hvd)
        self._own = OwnConnections()
        self._told: Handle = None
        self._untold: torch.Tensor | None = None
        self._buffer: Handle = None
        self._staging = Staging()
        self._cutting = threading.Lock()
        self.generation = 0
        self.rank = 0
        self.size = 1

    def start(self) -> None:
        """Enter a rendezvous; try again if it breaks while it forms (corrected Horovod only).

        Raises TryAgainError if Horovod does not start, WorkerLostError if this is a member no more.
        """
        deadline = time.monotonic() + MAX_INIT_SECONDS
        num_failures = 0
        with self._cutting:
            self._own.begin()
            self._told = self._untold = None
        os.environ.setdefault(FUSION_VARIABLE, str(FUSION_BYTES))
        while True:
            try:
                self._init()
                self.laps.lap("meeting")
                self.rank = self._hvd.rank()
                self.size = self._hvd.size()
                self._untold = self._own.rows(self.rank)
                self.laps.lap("connections")
                break
            # ValueError is raised by the corrected Horovod; the stock one aborts.
            except (ValueError, Interrupted) as error:
                self._shutdown()
                if self._is_unwanted():
                    raise WorkerLostError("no longer a member of the job") from error
                if not self._elastic or time.monotonic() > deadline:
                    raise TryAgainError(f"Horovod did not start: {error}") from error
                time.sleep(doubled(FIRST_RETRY_SECONDS, num_failures, MAX_RETRY_SECONDS))
                num_failures += 1

    def _tell(self) -> None:
        """Tell the others of this worker's connections, together with what it tells them first.

        Whoever submits something sets off a round of messages between all, and each of them takes
        part: of what is submitted at two moments there are twice as many.
        """
        if self._untold is not None:
            rows, self._untold = self._untold, None
            self._reserve()
            self._told = self.gather_rows_async(rows, "connections")

    def _reserve(self) -> None:
        """Let Horovod allocate the buffer in which it joins small reductions, by joining two.

        It would do so when first two come together, in its own thread, and if there is no memory
        then, that thread ends without a word to those who wait for these two. Nobody waits for this
        sum by itself: what is submitted next is reduced in the same cycle or a later one.
        """
        pair = [torch.zeros(1), torch.zeros(1)]
        reduce, total = self._hvd.grouped_allreduce_async_, self._hvd.Sum
        self._buffer = self._submitted(lambda: reduce(pair, name="reserve", op=total))

    def _find_own(self) -> None:
        """Hear of the others' connections once they are told; nobody waits for that alone."""
        if self._told is None or not self.is_done(self._told):
            return
        told, self._told = self._told, None
        with suppress(Interrupted):  # whoever waits for something else hears of it there
            self.wait(self._buffer)
            self._own.told(self.wait(told), self.rank, self.size)

    def restart(self) -> None:
        """Shut Horovod down and start it again; all handles are void afterwards."""
        if not self._elastic:
            raise TryAgainError("a worker is gone, and this job was not started as an elastic one")
        with self._cutting:  # what is meant for this rendezvous must not hit the next one
            self.generation += 1
        self.operations.forget()
        self._staging.forget()
        self._shutdown()
        self.cut()  # the stock Horovod leaves most of them open: others would wait for this worker
        self.laps.lap("leaving")
        self.start()

    def stop(self) -> None:
        """Shut Horovod down."""
        self._shutdown()

    def cut(self, generation: int | None = None) -> None:
        """End Horovod's connections; while a rendezvous forms, all that were opened since."""
        port = int(os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "0"))
        with self._cutting:
            if generation in (None, self.generation):
                self._own.cut(except_port=port)

    def sum_async(self, tensor: torch.Tensor, name: str) -> Handle:
        """Start `hvd.allreduce_async_` with `op=Sum`; equal names and shapes on all ranks.

        From a device that Horovod cannot use the tensor goes through the host's memory. The sum of
        one worker is its own, and does not travel.
        """
        if self.size == 1:
            alone = Pending(ALONE, self.generation)
            alone.result = tensor
            return alone
        if is_accelerator(tensor.device) and self.instruments.backend_of(tensor) == "gloo":
            return self._staging.begin(tensor, lambda host: self._sum_async(host, name))
        return self._sum_async(tensor, name)

    def _sum_async(self, tensor: torch.Tensor, name: str) -> Pending:
        reduce, total = self._hvd.allreduce_async_, self._hvd.Sum
        handle = self._submitted(lambda: reduce(tensor, name=name, op=total))
        return self._launched(handle, "allreduce", tensor)

    def gather_rows_async(self, rows: torch.Tensor, name: str) -> Handle:
        """Start `hvd.allgather_async`; the number of rows may differ between ranks."""
        handle = self._submitted(lambda: self._hvd.allgather_async(rows, name=name))
        return self._launched(handle, "allgather", rows)

    def operate_async(
        self, op: str, tensor: torch.Tensor, name: str, options: dict[str, Any]
    ) -> Handle:
        """Start any operation; see `HorovodIntrospection.operate`."""
        return self._submitted(lambda: self.instruments.operate(op, tensor, name, options))

    def wait(self, handle: Handle) -> torch.Tensor:
        """Sleep until it is done, so that a waiting worker leaves its core to a computing one."""
        self.start_staged()
        if not isinstance(handle, StagedSum):
            return self._wait(handle)
        if handle.error is not None:
            raise handle.error
        if handle.fault:
            raise Interrupted(handle.fault)
        self._wait(handle.handle)
        return handle.write_back()

    def _wait(self, handle: Pending) -> torch.Tensor:
        if handle.result is not None:
            return handle.result
        if not handle.fault and handle.generation != self.generation:
            handle.fault = "the rendezvous of this operation is over"
        if handle.fault:
            raise Interrupted(handle.fault)
        if self._spins:
            self._poll(handle)
        try:
            handle.result = self._hvd.synchronize(handle.number)
        except self._hvd.HorovodInternalError as error:
            handle.fault = str(error)
            raise _translated(error) from error
        self.operations.done(handle, getattr(handle.result, "nbytes", None))
        self._find_own()
        return handle.result

    def _poll(self, handle: Handle) -> None:
        began_at = time.perf_counter()
        while not self.is_done(handle):
            waited = time.perf_counter() - began_at
            time.sleep(min(max(MIN_POLL_SECONDS, POLL_RATIO * waited), MAX_POLL_SECONDS))

    def _submitted(self, submit: Callable[[], int]) -> Pending:
        self._tell()
        try:
            return Pending(submit(), self.generation)
        except self._hvd.HorovodInternalError as error:
            raise _translated(error) from error

    def _launched(self, handle: Pending, op: str, tensor: torch.Tensor) -> Pending:
        self.operations.launched(handle, op, self.instruments.backend_of(tensor), tensor.nbytes)
        return handle

    def is_done(self, handle: Handle) -> bool:
        """Ask Horovod, unless the end is known."""
        if isinstance(handle, StagedSum):
            self._staging.start_ready()
            has_failed = bool(handle.fault) or handle.error is not None
            return has_failed or (handle.handle is not None and self.is_done(handle.handle))
        if handle.result is not None or handle.fault or handle.generation != self.generation:
            return True
        return bool(self._hvd.poll(handle.number))

    def start_staged(self) -> None:
        """Start each sum of a device's tensor as soon as that has arrived on the host."""
        self._staging.start_all()

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> None:
        """Broadcast in chunks, in place."""
        chunk = max(1, BROADCAST_CHUNK_BYTES // tensor.element_size())
        for index, start in enumerate(range(0, tensor.numel(), chunk)):
            piece = tensor[start : start + chunk]
            self._broadcast(piece, root, f"{name}.{index}")

    def exchange(self, rows: torch.Tensor, counts: Sequence[int], name: str) -> torch.Tensor:
        """See `Collective`."""
        splits = torch.tensor(counts, dtype=torch.int32)
        handle = self._submitted(lambda: self._hvd.alltoall_async(rows, splits, name=name))
        # Beside what has come, Horovod gives the sizes of its parts.
        got: torch.Tensor = self.wait(self._launched(handle, "alltoall", rows))[0]
        return got

    def _broadcast(self, piece: torch.Tensor, root: int, name: str) -> None:
        handle = self._submitted(lambda: self._hvd.broadcast_async_(piece, root, name=name))
        self.wait(self._launched(handle, "broadcast", piece))


def _translated(error: Exception) -> Exception:
    """A broken rendezvous is worth a new one; a mismatch between ranks would only come again."""
    return disagreement(error) or Interrupted(str(error))


def disagreement(error: BaseException) -> JobError | None:
    """What to say of Horovod's error if it comes of the script and not of a lost worker."""
    if "ismatched" in str(error):
        return JobError(f"the workers do not agree on what to reduce: {error}")
    return None


def nccl_version() -> str:
    """Of the NCCL that Horovod was built with; empty without it, or without Horovod."""
    try:
        import horovod.torch as hvd  # noqa: PLC0415 - as above
    except ImportError:
        return ""
    code = int(hvd.nccl_built())  # NCCL_VERSION_CODE, since NCCL 2.9 in this form
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}" if code else ""


def open_collective(*, is_unwanted: Callable[[], bool]) -> Collective:
    """The collective that this process's environment asks for.

    Horovod's launcher (ours, `horovodrun`, elastic or not) sets `HOROVOD_RANK`; without it the
    script runs alone.

    Args:
        is_unwanted: Whether the driver has told this worker to leave.
    """
    if "HOROVOD_RANK" not in os.environ:
        return SingleProcess()
    return HorovodCollective(elastic=is_elastic(), is_unwanted=is_unwanted)


def take_slot(environment: Mapping[str, str]) -> None:
    """Let Horovod find the variables of this process's slot when it starts."""
    os.environ.update(environment)


def is_elastic() -> bool:
    """Whether Horovod's launcher, ours or its own, lets the membership change."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def local_rank() -> int:
    """Which of the workers of its host this one is."""
    return int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))


class HostUpdates:
    """Horovod's own notice that hosts came or went, for a script under elastic `horovodrun`.

    Horovod's driver tells rank 0. Our own sends `ResetRequested` on the channel instead.
    """

    def __init__(self) -> None:
        from horovod.common.elastic import notification_manager  # noqa: PLC0415 - as above

        self.pending = False
        notification_manager.init()
        notification_manager.register_listener(self)

    def on_hosts_updated(self, timestamp: float, update_res: Sequence[int] | int) -> None:  # noqa: ARG002
        """Called by Horovod's notification thread on rank 0."""
        self.pending = True
