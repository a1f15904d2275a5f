"""The HTTP server in the loop of a driver or hub; the only module that imports uvicorn."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from asyncio import Task, Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hetero_hvd.config import JobConfig
from hetero_hvd.config.value_types import host_in_url
from hetero_hvd.errors import ConfigError, job_error
from hetero_hvd.run.web.access import Access
from hetero_hvd.run.web.app import Answers, Sources
from hetero_hvd.run.web.problems import problem
from hetero_hvd.run.web.scraping.targets import TargetFile
from hetero_hvd.run.web.source import NAME
from hetero_hvd.security.connection_limiter import ConnectionLimiter, setting_at_fault
from hetero_hvd.security.secret_files import read_secret
from hetero_hvd.security.token import token_file

MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 128
MAX_STRANGERS = 64
"""Of them, those that have shown no token; where none is needed, that have not asked yet."""

SILENT_SECONDS = 10.0
CLOSE_SECONDS = 3.0


FULL = "more connections than this server has room for: ask again in a few seconds"
MALFORMED = "is no HTTP request that this server reads: its head must be HTTP/1.1, at most 16 KiB"


class _Protocol(H11Protocol):
    """Cuts off who has sent no complete request after a while; uvicorn waits for ever.

    What uvicorn would refuse in plain text is refused as by the application.
    """

    def handle_events(self) -> None:
        is_full = max(len(self.connections), len(self.tasks)) >= MAX_CONNECTIONS
        self.app = problem(503, FULL) if is_full else self.config.loaded_app
        super().handle_events()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it says nothing
        cycle = getattr(self, "cycle", None)
        if cycle is None or not cycle.response_started or cycle.response_complete:
            found = problem(400, MALFORMED)
            lines = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
            lines += [b": ".join(header) for header in found.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(found.body)]))
        self.transport.close()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(SILENT_SECONDS, self._look, None)

    def _look(self, earlier: object) -> None:
        if self.transport.is_closing():
            return
        cycle = getattr(
            self, "cycle", None
        )  # None before the first request, whatever its type says
        is_idle = cycle is None or cycle.response_complete
        if is_idle and earlier is cycle:
            self.transport.abort()
            return
        self.loop.call_later(SILENT_SECONDS, self._look, cycle)


class _Server(uvicorn.Server):
    """Leaves the signals to the driver."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, kw_only=True)
class HttpEnd:
    """Where to listen.

    Attributes:
        address: Own one.
        port: 0 for any.
        certificate: PEM file; None: in plain text.
        key: PEM file.
        client_ca: PEM file, whose clients alone may come; None: all.
        settings: What the names of their settings begin with, for messages.
    """

    address: str
    port: int
    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    settings: str = "job.http_"


class HttpServer:
    """Serves an application. Used in the loop's thread.

    Args:
        end: Where.
        door: Keeps the books of its connections.
    """

    def __init__(self, end: HttpEnd, door: ConnectionLimiter) -> None:
        self._end = end
        self._door = door
        self._server: _Server | None = None
        self._task: Task[None] | None = None
        self.url = ""

    async def listen(self, app: Any) -> None:  # noqa: ANN401 - an ASGI application
        """Answer requests from now on.

        Raises:
            JobError: The address or port cannot be had.
            ConfigError: The certificate cannot be used.
        """
        end = self._end
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_level="error",  # whoever sends nonsense is told, and fills no log
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_graceful_shutdown=1,
            ssl_certfile=end.certificate,
            ssl_keyfile=end.key,
            ssl_ca_certs=end.client_ca,
            ssl_cert_reqs=ssl.CERT_REQUIRED if end.client_ca else ssl.CERT_NONE,
        )
        try:
            for path in filter(None, (end.certificate, end.key, end.client_ca)):
                read_secret(Path(path), max_bytes=0)  # nobody waits at a pipe
            config.load()
        except OSError as error:  # ssl.SSLError is one
            where = f"{end.settings}certificate"
            raise ConfigError([f"{where}: cannot be used: {_reason(error)}"]) from error
        listening = _bound(self._door, end)
        scheme = "https" if end.certificate else "http"
        self.url = f"{scheme}://{host_in_url(end.address)}:{listening.getsockname()[1]}"
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def close(self) -> None:
        """Answer no more."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._task, CLOSE_SECONDS)


class Web:
    """The HTTP side of a job. Used in the loop's thread.

    Args:
        job: Its settings.
        output: Folder of the run; gets live.json, from which `hetero-hvd top` learns the address,
            and beside it a file from which Prometheus does; None: there is none.
        say: Tells people of a token file that cannot be used any more; None: it is logged.

    Raises:
        ConfigError: A token file or certificate cannot be used.
    """

    def __init__(
        self, job: JobConfig, output: Path | None, say: Callable[[str], None] | None = None
    ) -> None:
        self._job = job
        self._file = None if output is None else output / NAME
        self._target_file = None if output is None else TargetFile(output)
        self._access = Access(
            address=job.http_address,
            read=token_file(job.http_token_file, "job.http_token_file", say),
            operate=token_file(job.http_operate_token_file, "job.http_operate_token_file", say),
        )
        self._door = ConnectionLimiter("http", MAX_STRANGERS)
        self._answers: Answers | None = None
        end = HttpEnd(
            address=job.http_address,
            port=job.http_port,
            certificate=job.http_certificate,
            key=job.http_key,
            client_ca=job.http_client_ca,
        )
        self._server = HttpServer(end, self._door)

    @property
    def url(self) -> str:
        """Of the page, without a slash at the end; empty before it listens."""
        return self._server.url

    async def listen(self, sources: Sources) -> None:
        """Answer requests from now on.

        Raises:
            JobError: The address or port cannot be had.
            ConfigError: The certificate cannot be used.
        """
        self._answers = Answers(self._access, sources, self._door)
        await self._server.listen(self._answers.app())
        self._announce()
        if self._target_file is not None:
            self._target_file.write(sources.targets()[:1])

    def look(self) -> None:
        """Tell of token files that cannot be used any more; call it often."""
        self._access.look()

    @property
    def refused(self) -> int:
        """Requests and connections turned away."""
        return self._door.refused + (self._answers.refused if self._answers else 0)

    @property
    def target(self) -> str:
        """Address and port, as Prometheus wants it."""
        return self.url.partition("://")[2]

    async def close(self) -> None:
        """Answer no more."""
        with suppress(OSError):
            if self._file is not None:
                self._file.unlink(missing_ok=True)
        if self._target_file is not None:
            self._target_file.remove()
        await self._server.close()

    def _announce(self) -> None:
        if self._file is None:
            return
        facts: dict[str, Any] = {"url": self.url, "token_file": self._job.http_token_file}
        try:
            self._file.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(self._file, flags, 0o600), "w") as file:
                json.dump(facts, file)
        except OSError as error:
            words = f"{self._file} cannot be written: {error.strerror}"
            raise job_error(words, error) from error


def _reason(error: OSError) -> str:
    """What the system says, and of which file if that is known; OpenSSL does not tell."""
    if isinstance(error, ssl.SSLError):
        return f"it, its key or the authority is no PEM file, or they do not fit ({error.reason})"
    return f"{error.filename or 'a file'}: {error.strerror}"


def _bound(door: ConnectionLimiter, end: HttpEnd) -> socket.socket:
    """A listening socket.

    Raises:
        JobError: The address is not ours, or the port is taken.
    """
    try:
        return door.listen(end.address, end.port, is_plain=end.certificate is None)
    except OSError as error:
        setting = f"{end.settings}{setting_at_fault(error)}"
        where = f"{end.address} port {end.port}"
        words = f"{setting}: cannot listen on {where}: {error.strerror or error}"
        raise job_error(words, error) from error
