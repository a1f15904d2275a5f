"""Where `hetero-hvd top` gets a run's state from: a driver's address, or a run's records."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.printable import printable
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.live import LiveState, LiveView
from hetero_hvd.errors import JobError
from hetero_hvd.run.records.parts import history, parts_of
from hetero_hvd.run.records.run_files import is_locked, regular
from hetero_hvd.run.records.timings import FILE
from hetero_hvd.run.reports.facts import NO_END
from hetero_hvd.run.web.orders import DrainOrder, OrderTaken
from hetero_hvd.security.http_requests import NoRedirects, why_no_answer
from hetero_hvd.security.tls import context_for_others
from hetero_hvd.security.token import read_token

NAME = "live.json"
"""Where the page of a run is, in its folder while it has one."""

TIMEOUT_SECONDS = 5.0
MAX_STATE_BYTES = 64 * 2**20
MAX_PROBLEM_BYTES = 2**16
REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

Source = Callable[[], LiveState]
Answer = TypeVar("Answer")


def source_of(run: str, *, token_file: str | None, ca: str | None) -> Source:
    """Where the state of a run comes from.

    Args:
        run: URL of a driver's page, or folder of a run.
        token_file: File with the token for looking.
        ca: Certificate of the CA to trust, PEM.

    Raises:
        JobError: There is no such run.
        ConfigError: The token file cannot be used.
    """
    if "://" in run:
        return _driver(run, token_file, ca)
    folder = Path(run)
    page = announced(folder)
    if page is None:
        return lambda: recorded(folder)
    try:
        live = _driver(page.url, token_file or page.token_file, ca)
        live()
    except (JobError, ValueError) as error:  # ValueError: that is no URL
        if (folder / FILE).is_file():  # the driver was killed and left its address behind
            return lambda: recorded(folder)
        raise JobError(f"{folder / NAME}: {error}") from error
    return live


class LivePage(msgspec.Struct):
    """What a driver has written into its folder.

    Attributes:
        url: Of the page, without a slash at the end.
        token_file: File with the token for looking; None: none is needed.
    """

    url: str
    token_file: str | None = None


def announced(folder: Path) -> LivePage | None:
    """Where the page of a run is; None: it has none, or what is there tells none."""
    try:
        with open(folder / NAME, "rb", opener=regular) as file:
            return msgspec.json.decode(file.read(), type=LivePage)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def recorded(folder: Path) -> LiveState:
    """The last state of a run, from its records.

    Where no end is recorded it goes on, as long as somebody holds one of its folders on this
    machine.

    Raises:
        JobError: There are no records.
    """
    diagnoser = Diagnoser()
    view = LiveView(diagnoser.findings)
    for at_seconds, event in with_tables(history(folder)):
        diagnoser.observe(event)
        view.observe(at_seconds, event)
    state = view.state()
    state.run_id = state.run_id or folder.absolute().name
    if state.state != "ended" and not any(map(is_locked, parts_of(folder))):
        state.state = NO_END
    return state


def drained(url: str, target: str, *, token_file: str | None, ca: str | None) -> str:
    """Have a node or slot leave a run, by the address of its page.

    Args:
        url: Of the driver's page.
        target: `NODE` or `NODE:SLOT`.
        token_file: File with the token for operating.
        ca: Certificate of the CA to trust, PEM.

    Returns:
        What will happen, in words.

    Raises:
        JobError: No driver answers there, or it refuses.
        ConfigError: The token file cannot be used.
    """
    ask = _asking(url, token_file, ca)
    order = msgspec.json.encode(DrainOrder(target=target))
    return _read(url, ask("drain", order), OrderTaken).done


def _driver(url: str, token_file: str | None, ca: str | None) -> Source:
    ask = _asking(url, token_file, ca)
    return lambda: _read(url, ask("state", None), LiveState)


def _read(url: str, answer: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise JobError(
            f"{url}: no driver answers there, or one of another version (what came is not what a "
            "driver says)"
        ) from error


def _asking(
    url: str, token_file: str | None, ca: str | None
) -> Callable[[str, bytes | None], bytes]:
    """What asks a driver: for a path, with a body if it is an order."""
    token = read_token(token_file, "job.http_token_file")
    headers = {"Authorization": f"Bearer {token.decode()}"} if token else {}
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise JobError(f"{url}: is no address of a page: must be http[s]://HOST[:PORT]")
    if token and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise JobError(f"{url}: the token would cross the network in the clear; use https")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),  # a proxy has no way to this machine's loopback
        urllib.request.HTTPSHandler(context=context_for_others(ca)),
        NoRedirects(),  # the token is for this server alone
    )

    def ask(path: str, body: bytes | None) -> bytes:
        kind = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310 - see above
            f"{url.rstrip('/')}/{path}", data=body, headers=headers | kind
        )
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return bytes(answer.read(MAX_STATE_BYTES))
        except urllib.error.HTTPError as error:
            reason = "give the right --token-file" if error.code in REFUSED else _why(error)
            raise JobError(f"{url}: {error.code}: {reason}") from error
        except (OSError, HTTPException) as error:
            raise JobError(f"{url}: no driver answers there ({why_no_answer(error)})") from error
        except ValueError as error:  # of its host or port
            raise JobError(f"{url}: no driver answers there (that is no address)") from error

    return ask


def _why(error: urllib.error.HTTPError) -> str:
    """What a driver says of an order that it does not take."""
    try:
        told = msgspec.json.decode(error.read(MAX_PROBLEM_BYTES), type=_OrderRefused)
    except (OSError, HTTPException, msgspec.DecodeError, RecursionError):
        return error.reason
    return printable(told.error)


class _OrderRefused(msgspec.Struct):
    """The body of an answer that refuses."""

    error: str
