"""The driver's end: has Ray place agents, and says which nodes there are."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import msgspec

from hetero_hvd.errors import TryAgainError, UserError
from hetero_hvd.ray_cluster.reports import AgentNode, PlacerOrder, PlacerReport, nodes_as_yaml
from hetero_hvd.security.cluster_key import make_key

CONNECT_SECONDS = 60.0
"""For Ray to answer; by itself it tries for minutes."""

FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 5.0, 60.0
END_SECONDS = 10.0
MAX_SAID_BYTES = 4096


class RayAgents:
    """The agents on a Ray cluster, from `start` to `close`.

    Args:
        address: Of the cluster, as `ray.init` takes it.
        resources: What to take of each node, see `placement`.
        say: Tells people; called in a thread of its own.
        timeout_seconds: For the first node: a cluster that grows needs minutes for one.
    """

    def __init__(
        self,
        address: str,
        resources: Mapping[str, float],
        *,
        say: Callable[[str], None],
        timeout_seconds: float,
    ) -> None:
        self._address = address
        self._resources = dict(resources)
        self._say = say
        self._timeout_seconds = timeout_seconds
        self._held = ExitStack()
        self._key_file = Path()
        self._errors = Path()
        self._changed = threading.Condition()
        self._nodes: tuple[AgentNode, ...] = ()
        self._is_connected = False
        self._has_started = False
        self._is_settled = False
        self._failed: UserError | None = None
        self._is_over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="ray", daemon=True)

    def start(self) -> None:
        """Have agents placed; returns when those of the nodes that are there listen.

        Raises:
            UserError: There can be no such cluster.
            TryAgainError: It does not answer, or has no node for us.
        """
        held = tempfile.TemporaryDirectory(prefix="hetero-hvd-ray-")
        folder = Path(self._held.enter_context(held))
        self._key_file = folder / "cluster.key"
        self._errors = folder / "ray.txt"
        make_key(self._key_file)
        self._thread.start()
        with self._changed:
            if not self._until(lambda: self._is_connected, CONNECT_SECONDS):
                raise TryAgainError(
                    f"--ray {self._address}: no answer in {CONNECT_SECONDS:g} s; is the cluster "
                    "there, and may this machine reach it?"
                )
            self._until(lambda: self._nodes and self._is_settled, self._timeout_seconds)
            self._has_started = bool(self._nodes)
            if not self._has_started:
                raise TryAgainError(
                    f"--ray: no agent was started on any node in {self._timeout_seconds:g} s; the "
                    "lines above say why, and `ray status` what the cluster has"
                )

    def granted(self) -> bytes:
        """The nodes as nodes.yaml would list them."""
        with self._changed:
            return nodes_as_yaml(self._nodes, str(self._key_file))

    def close(self) -> None:
        """End all agents."""
        self._is_over.set()
        if self._thread.is_alive():
            self._end(self._process)
            self._thread.join(END_SECONDS)
        self._held.close()

    def _until(self, condition: Callable[[], object], timeout_seconds: float) -> bool:
        """Wait for it; false if it has not come in time.

        Raises:
            UserError: There is nothing to wait for.
        """
        self._changed.wait_for(lambda: self._failed or condition(), timeout_seconds)
        if self._failed:
            raise self._failed
        return bool(condition())

    def _keep(self) -> None:
        """Run the process that talks with Ray; a cluster that is back is used again."""
        delay_seconds = FIRST_DELAY_SECONDS
        while not self._is_over.is_set():
            began_at_seconds = time.monotonic()
            why, is_lasting = self._run()
            if self._is_over.is_set():
                return
            with self._changed:
                if not self._has_started:
                    words = why or f"--ray {self._address}: {self._last_words()}"
                    self._failed = (UserError if is_lasting else TryAgainError)(words)
                    self._changed.notify_all()
                    return
            if time.monotonic() - began_at_seconds > MAX_DELAY_SECONDS:
                delay_seconds = FIRST_DELAY_SECONDS
            words = why or self._last_words()
            self._say(f"Ray is out of reach: {words}; tried again in {delay_seconds:g} s")
            self._is_over.wait(delay_seconds)
            delay_seconds = min(2 * delay_seconds, MAX_DELAY_SECONDS)

    def _run(self) -> tuple[str, bool]:
        """Until that process ends; gives why, as far as it has said so, and whether that stays."""
        self._process = None
        try:
            key = self._key_file.read_text().strip()
            order = PlacerOrder(address=self._address, resources=self._resources, key=key)
            with self._errors.open("wb") as errors:
                self._process = process = subprocess.Popen(
                    [sys.executable, "-m", "hetero_hvd.ray_cluster.placer_program"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            assert process.stdin is not None  # noqa: S101 - a pipe was asked for
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
            with process.stdout as lines:
                return self._listen(lines)
        except BrokenPipeError:  # it has ended already: its last words say why
            return "", False
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"the process that talks with Ray: {error}", False
        finally:
            self._end(self._process)

    def _listen(self, lines: IO[bytes]) -> tuple[str, bool]:
        why, is_lasting = "", False
        for line in lines:
            report = msgspec.json.decode(line, type=PlacerReport)
            why, is_lasting = report.failed, report.is_lasting
            if report.said:
                self._say(report.said)
            with self._changed:
                self._is_connected |= report.connected
                if report.nodes is not None:
                    self._nodes = report.nodes
                    self._is_settled = report.is_settled
                self._changed.notify_all()
        return why, is_lasting

    def _last_words(self) -> str:
        """The last that was printed there, by Ray's libraries too."""
        text = self._errors.read_bytes()[-MAX_SAID_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "the process that talks with Ray has ended"

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None) -> None:
        if process is None:
            return
        if process.stdin is not None and not process.stdin.closed:
            with suppress(BrokenPipeError):  # what it has not read is still to be written
                process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
