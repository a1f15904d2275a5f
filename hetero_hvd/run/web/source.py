"""Where `hetero-hvd top` gets a run's state from: a driver's address, or a run's records."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.live import LiveState, LiveView
from hetero_hvd.errors import JobError
from hetero_hvd.run.records.parts import history, parts_of
from hetero_hvd.run.records.run_files import is_locked, regular
from hetero_hvd.run.records.timings import FILE
from hetero_hvd.run.reports.facts import NO_END
from hetero_hvd.security.redirects import NoRedirects
from hetero_hvd.security.tls import context_for_others
from hetero_hvd.security.token import read_token

NAME = "live.json"
"""Where the page of a run is, in its folder while it has one."""

TIMEOUT_SECONDS = 5.0
MAX_STATE_BYTES = 64 * 2**20
UNAUTHORIZED = HTTPStatus.UNAUTHORIZED

Source = Callable[[], LiveState]


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
    if run.startswith(("http://", "https://")):
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


def _driver(url: str, token_file: str | None, ca: str | None) -> Source:
    token = read_token(token_file, "job.http_token_file")
    headers = {"Authorization": f"Bearer {token.decode()}"} if token else {}
    address = f"{url.rstrip('/')}/state"
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - see source_of
    parts = urlsplit(url)
    if token and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise JobError(f"{url}: the token would cross the network in the clear; use https")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),  # a proxy has no way to this machine's loopback
        urllib.request.HTTPSHandler(context=context_for_others(ca)),
        NoRedirects(),  # the token is for this server alone
    )

    def fetch() -> LiveState:
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return msgspec.json.decode(answer.read(MAX_STATE_BYTES), type=LiveState)
        except urllib.error.HTTPError as error:
            reason = "give the right --token-file" if error.code == UNAUTHORIZED else error.reason
            raise JobError(f"{url}: {error.code}: {reason}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise JobError(
                f"{url}: no driver answers there, or one of another version (what came is no state "
                "of a run)"
            ) from error
        except (OSError, HTTPException) as error:
            raise JobError(f"{url}: no driver answers there ({error})") from error

    return fetch
