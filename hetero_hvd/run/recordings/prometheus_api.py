"""Asks Prometheus' HTTP API, or another that speaks it (Thanos, Mimir, VictoriaMetrics).

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import http.client
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.core.backoff import doubled
from hetero_hvd.core.printable import printable
from hetero_hvd.errors import JobError, TryAgainError, UserError
from hetero_hvd.messages import NO_JSON
from hetero_hvd.run.recordings.cutoff import Cutoff, CutoffHandler
from hetero_hvd.security.http_requests import NoRedirects, untrusted, why_no_answer
from hetero_hvd.security.tls import context_for_others

MAX_POINTS = 11_000
"""Of one series in one answer: Prometheus refuses more."""

TIMEOUT_SECONDS = 30.0
"""To connect, and between two pieces of an answer."""

ANSWER_SECONDS = 120.0
"""Until all of an answer is there, whatever was tried: Prometheus itself gives up a query after two
minutes."""

MAX_ANSWER_BYTES = 2**26
_PIECE_BYTES = 2**16

NUM_TRIES = 3
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 10.0

_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which another try may help."""

_MAX_WORDS = 300


class PrometheusSeries(msgspec.Struct, frozen=True):
    """One series of an answer.

    Attributes:
        metric: Its labels.
        values: Seconds since 1970 and value, ascending; of an instant there is one at most.
    """

    metric: dict[str, str]
    values: tuple[tuple[float, float], ...] = ()


class _ToldSeries(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: tuple[tuple[float, str], ...] = ()
    value: tuple[float, str] | None = None


class _QueryData(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: tuple[_ToldSeries, ...] = ()


class _QueryAnswer(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: msgspec.Raw = msgspec.Raw()
    error: str = ""
    warnings: tuple[str, ...] = ()


class _BusyError(Exception):
    """Another try may help; the message says what happened."""


class PrometheusApi:
    """One server.

    Args:
        url: Of its root, such as `https://prometheus:9090` or `https://host/prefix`.
        token: Shown as a bearer; None: none.
        ca_file: Certificates of the authorities of https; None: those of this machine.

    Attributes:
        warnings: What the server has warned of, each once.

    Raises:
        UserError: The URL is none, or the token would be shown to whoever listens.
    """

    def __init__(self, url: str, *, token: str | None = None, ca_file: Path | None = None) -> None:
        self._place = _checked(url, has_token=token is not None)
        self._url = url.rstrip("/").removesuffix("/api/v1")
        self._headers = {"Accept": "application/json", "User-Agent": "hetero_hvd"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        try:
            context = context_for_others(None if ca_file is None else str(ca_file))
        except OSError as error:
            raise UserError(
                f"{ca_file}: cannot be read as certificates in PEM: {error.strerror or error}"
            ) from error
        self._context = context
        self._handlers: list[urllib.request.BaseHandler] = [NoRedirects()]
        if is_loopback(urlsplit(url).hostname or ""):  # the token would leave this machine
            self._handlers.append(urllib.request.ProxyHandler({}))
        self.warnings: dict[str, None] = {}

    def instant(self, query: str, at_unix_seconds: float) -> list[PrometheusSeries]:
        """The values of a query at one time; of a range in it all that were scraped.

        Raises:
            JobError: It is refused, or the answer is none of Prometheus.
            TryAgainError: There is none.
        """
        return self._asked("query", query=query, time=f"{at_unix_seconds:.3f}")

    def over(
        self, query: str, begin: float, end: float, step_seconds: float
    ) -> Iterator[PrometheusSeries]:
        """The values of a query from a time on every so many seconds, in pages of `MAX_POINTS`.

        Raises:
            JobError: It is refused, or the answer is none of Prometheus.
            TryAgainError: There is none.
        """
        number = math.floor((end - begin) / step_seconds + 1e-6) + 1
        for first in range(0, number, MAX_POINTS):
            last = min(first + MAX_POINTS, number) - 1
            times = {name: f"{begin + place * step_seconds:.3f}"
                     for name, place in (("start", first), ("end", last))}  # fmt: skip
            yield from self._asked("query_range", query=query, step=f"{step_seconds:.3f}", **times)

    def _asked(self, path: str, **parameters: str) -> list[PrometheusSeries]:
        url = f"{self._url}/api/v1/{path}?{urlencode(parameters)}"
        why: _BusyError | None = None
        with Cutoff(ANSWER_SECONDS) as cutoff:
            for number in range(NUM_TRIES):
                if number:
                    cutoff.wait(doubled(FIRST_WAIT_SECONDS, number - 1, LONGEST_WAIT_SECONDS))
                if cutoff.is_over:
                    break
                try:
                    return self._series(self._content(url, cutoff))
                except _BusyError as error:
                    why = error
            words = f"has not answered within {ANSWER_SECONDS:g} s"
            words = words if cutoff.is_over else f"{why}, {NUM_TRIES} times"
        raise TryAgainError(f"{self._place}: {words}") from why

    def _content(self, url: str, cutoff: Cutoff) -> bytes:
        """The body of an answer that is one.

        Raises:
            JobError: It is refused.
            _BusyError: Another try may help.
        """
        request = urllib.request.Request(url, headers=self._headers)  # noqa: S310 - checked
        opener = urllib.request.build_opener(CutoffHandler(cutoff, self._context), *self._handlers)
        try:
            with opener.open(request, timeout=min(TIMEOUT_SECONDS, cutoff.left_seconds)) as answer:
                return self._read(answer, cutoff)
        except urllib.error.HTTPError as error:
            with closing(error):
                raise self._refusal(error, cutoff) from None
        except (OSError, http.client.HTTPException) as error:
            if words := untrusted(error):
                raise JobError(
                    f"{self._place}: its certificate is not trusted: {words}; name its authority "
                    "with --prometheus-ca"
                ) from error
            raise _BusyError(f"does not answer ({why_no_answer(error)})") from error

    def _read(
        self, answer: http.client.HTTPResponse | urllib.error.HTTPError, cutoff: Cutoff
    ) -> bytes:
        pieces, size = [], 0
        while piece := answer.read1(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise JobError(
                    f"{self._place}: has answered with more than {MAX_ANSWER_BYTES // 2**20} MiB; "
                    "ask for fewer series with --match, or for less time with --hours"
                )
        if cutoff.is_over:
            raise _BusyError("was cut off")
        if answer.length:
            raise _BusyError(f"has ended an answer {answer.length} bytes too soon")
        return b"".join(pieces)

    def _refusal(self, error: urllib.error.HTTPError, cutoff: Cutoff) -> Exception:
        """What a status other than success means."""
        told = f"{self._place}: has answered with status {error.code}"
        if error.code in _BUSY:
            return _BusyError(f"has answered with status {error.code}")
        if error.code in {401, 403}:
            return JobError(
                f"{told}: it wants another token; name a file that holds it with "
                "--prometheus-token-file, or set PROMETHEUS_TOKEN"
            )
        if 300 <= error.code < 400:  # noqa: PLR2004 - sent elsewhere
            where = printable(error.headers.get("Location", "nowhere"))[:_MAX_WORDS]
            return JobError(f"{told}: it sends to {where}; give that address, if it is right")
        words = ""
        with suppress(*NO_JSON, _BusyError, OSError, http.client.HTTPException, AttributeError):
            words = msgspec.json.decode(self._read(error, cutoff), type=_QueryAnswer).error
        if words:
            return JobError(f"{told}: {printable(words)[:_MAX_WORDS]}")
        return JobError(f"{told}, and is no Prometheus there: give the address of its root")

    def _series(self, content: bytes) -> list[PrometheusSeries]:
        try:
            answer = msgspec.json.decode(content, type=_QueryAnswer)
            if answer.status != "success":
                words = printable(answer.error)[:_MAX_WORDS]
                raise JobError(f"{self._place}: has refused a query: {words}")
            data = msgspec.json.decode(answer.data, type=_QueryData)
            found = [PrometheusSeries(told.metric, tuple(_values(told))) for told in data.result]
        except (*NO_JSON, ValueError) as error:
            begin = printable(content[:60].decode(errors="replace"))
            raise JobError(
                f"{self._place}: its answer is none of Prometheus' ({len(content)} bytes, that "
                f"begin with {begin!r}): {printable(str(error))}"
            ) from error
        self.warnings |= dict.fromkeys(printable(each) for each in answer.warnings)
        return found


def _values(told: _ToldSeries) -> Iterator[tuple[float, float]]:
    for at, value in (*told.values, *((told.value,) if told.value else ())):
        yield at, float(value)  # `NaN` and `+Inf`, too


def _checked(url: str, *, has_token: bool) -> str:
    """Where a server is, for messages.

    Raises:
        UserError: See `PrometheusApi`.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        host, parts = "", urlsplit("")
    can_be_sent = url.isprintable() and " " not in url and parts.path.isascii()
    if parts.scheme not in {"http", "https"} or not host or not can_be_sent:
        raise UserError(
            f"--prometheus: {printable(url)}: must be an address such as https://HOST:9090"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise UserError(
            "--prometheus: a name, a password or a query has no place in the address, which all "
            "users of this machine see; put a token into a file: --prometheus-token-file"
        )
    if has_token and parts.scheme == "http" and not is_loopback(host):
        raise UserError(
            f"--prometheus: {url}: the token would cross the network in plain text; use https"
        )
    return f"{parts.scheme}://{parts.netloc}"
