"""A program of ours on a node: its source, its orders and its answers go over one connection."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from types import TracebackType
from typing import IO, Any, Self

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launchers.ssh import ssh_vector
from hetero_hvd.errors import NodeError
from hetero_hvd.exit_codes import EXIT_NOT_STARTED, as_exit_code
from hetero_hvd.remote.node_answers import checked
from hetero_hvd.remote.ssh_failures import NO_PYTHON, failure

MAX_ANSWER_BYTES = 2**20

_FIRST_THAT_FITS = (
    "fits=$1; boot=$2; shift 2; "
    'for python; do if "$python" -c "$fits" 2>/dev/null; '
    'then exec "$python" -c "$boot" "$python"; fi; done; '
    'found=$(for python; do "$python" -V 2>/dev/null; done | sort -u | tr "\\n" " "); '
    f'echo "{NO_PYTHON}; found: ${{found:-none at all}}" >&2; exit {EXIT_NOT_STARTED}'
)
"""For the node's shell: of several interpreters takes the first that passes a test."""

_BOOT = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))"
_LOOP = """
import json
program = {"__name__": "program"}
exec(i.read(int(i.readline())), program)
for line in i:
    name, order = json.loads(line)
    try:
        answer = {"answer": program[name](**order)}
    except Exception as error:
        answer = {"error": str(error) or type(error).__name__}
    print("\\n" + json.dumps(answer), flush=True)
    if "error" in answer:
        break
"""
"""What the node runs first: it takes the program, then orders, and stops at the first error."""


class _InputEnded(Exception):  # noqa: N818 - its end says why
    """The program takes nothing more."""


class Input:
    """The input of a program on a node.

    Args:
        pipe: To it.
        on_taken: Called whenever it has taken some.
    """

    def __init__(self, pipe: IO[bytes], on_taken: Callable[[], None]) -> None:
        self._pipe = pipe
        self._on_taken = on_taken

    def write(self, data: bytes) -> int:
        """Give it some more."""
        try:
            self._pipe.write(data)
        except OSError as error:
            raise _InputEnded from error
        self._on_taken()
        return len(data)


class _Deadline:
    """Calls a function when time is over, unless it is left or extended before."""

    def __init__(self, seconds: float, on_late: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_late = on_late
        self._is_left = threading.Event()
        self._at = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def extend(self) -> None:
        """The time begins anew."""
        self._at = time.monotonic() + self._seconds

    def __enter__(self) -> Self:
        self.extend()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_left.set()
        self._thread.join()

    def _watch(self) -> None:
        while (left := self._at - time.monotonic()) > 0:
            if self._is_left.wait(left):
                return
        self._on_late()


class NodeProgram:
    """Runs a module of `programs` on a node; each of its functions is an order that can be given.

    Args:
        node: Where; a local one is asked in the same way, without ssh.
        name: Of the module.
        interpreters: Programs to try, from the home of who logs in.
        fits: Python code that ends well where the interpreter will do.

    Raises:
        NodeError: There is no ssh here.
    """

    def __init__(
        self, node: NodeConfig, name: str, *, interpreters: Sequence[str], fits: str = ""
    ) -> None:
        self._node = node
        self._name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._is_late = False
        words = ["sh", "-c", _FIRST_THAT_FITS, "sh", fits, _BOOT, *interpreters]
        try:
            self._process = subprocess.Popen(
                words if node.is_local else ssh_vector(node, words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except FileNotFoundError as error:
            self._errors.close()
            remedy = "apt-get install openssh-client"
            raise NodeError("there is no ssh client on this machine", remedy) from error
        program = files("hetero_hvd.remote.programs").joinpath(f"{name}.py").read_bytes()
        with suppress(OSError):  # whoever asks for an answer finds out why
            for part in (_LOOP.encode(), program):
                self._input.write(b"%d\n%s" % (len(part), part))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The end of its input ends the program; ssh is not waited for."""
        self._process.kill()
        with suppress(OSError):
            self._input.close()
        self._output.close()
        self._process.wait()
        self._errors.close()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        return self._process.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        return self._process.stdout

    def ask(
        self,
        name: str,
        order: Mapping[str, object] | None = None,
        *,
        seconds: float,
        payload: Callable[[Input], None] | None = None,
    ) -> Any:  # noqa: ANN401 - what the function returns
        """Give an order and wait for the answer.

        Args:
            name: A function of the program.
            order: Its arguments.
            seconds: Without an answer, and without that more of the payload is taken; then the
                connection is cut.
            payload: Writes what the function reads from its input.

        Raises:
            NodeError: The program failed, or there is no way to the node, or no answer in time,
                or one that no function of this name gives.
        """
        with _Deadline(seconds, self._cut) as deadline:
            with suppress(BrokenPipeError, _InputEnded):  # the process is gone: its end says why
                self._input.write(json.dumps([name, order or {}]).encode() + b"\n")
                if payload is not None:
                    payload(Input(self._input, deadline.extend))
                self._input.flush()
            answer = self._read()
        if answer is None:
            raise self._failure(seconds)
        if "error" in answer:
            raise NodeError(str(answer["error"]), "correct that on the node")
        return checked(self._name, name, answer["answer"])

    def _read(self) -> dict[str, Any] | None:
        """The next answer, whatever a profile of the login writes before; None at the end."""
        while line := self._output.readline(MAX_ANSWER_BYTES):
            with suppress(ValueError, RecursionError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.keys() in ({"answer"}, {"error"}):
                    return answer
        return None

    def _cut(self) -> None:
        self._is_late = True
        self._process.kill()

    def _failure(self, seconds: float) -> NodeError:
        code = as_exit_code(self._process.wait())
        if self._is_late:
            words = f"no answer in {seconds:g} s"
            return NodeError(words, "see what hangs there: ssh, disk, or the machine")
        self._errors.seek(0)
        return failure(self._node, code, self._errors.read().decode(errors="replace"))
