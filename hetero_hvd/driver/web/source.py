"""Where `hetero-hvd top` gets a run's state from: a driver's address, or a run's records."""

from __future__ import annotations

import json
import math
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hetero_hvd.config.kinds import is_loopback
from hetero_hvd.config.token import read_token
from hetero_hvd.core.live import LiveState, LiveView
from hetero_hvd.driver.web.server import NAME
from hetero_hvd.errors import JobError
from hetero_hvd.messages import StepsTimed, WorkersJoined

TIMEOUT_SECONDS = 5.0
MAX_STATE_BYTES = 64 * 2**20
UNAUTHORIZED = HTTPStatus.UNAUTHORIZED
RECORDING = "timings.jsonl"

Source = Callable[[], LiveState]


def source_of(run: str | None, *, token_file: str | None, ca: str | None) -> Source:
    """Where the state of a run comes from.

    Args:
        run: URL of a driver's page, folder of a run, or None: the newest in runs/.
        token_file: File with the token for looking.
        ca: Certificate of the CA to trust, PEM.

    Raises:
        JobError: There is no such run.
        ConfigError: The token file cannot be used.
    """
    if run is not None and run.startswith(("http://", "https://")):
        return _driver(run, token_file, ca)
    folder = _newest() if run is None else Path(run)
    try:
        facts = json.loads((folder / NAME).read_bytes())
        live = _driver(facts["url"], token_file or facts["token_file"], ca)
        live()
    except FileNotFoundError:
        return lambda: recorded(folder)
    except (JobError, ValueError):
        if (folder / RECORDING).is_file():  # the driver was killed and left its address behind
            return lambda: recorded(folder)
        raise
    return live


def recorded(folder: Path) -> LiveState:
    """The last state of a run that has ended, from its timings.

    Raises:
        JobError: There are no records.
    """
    view = LiveView()
    at_seconds = 0.0
    try:
        for event in _events(folder / RECORDING):
            if isinstance(event, StepsTimed):
                rows = [row for row in event.timings if row.num_steps > 0]
                at_seconds += max((row.num_steps * row.step_seconds for row in rows), default=0.0)
            view.observe(at_seconds, event)
    except OSError as error:
        raise JobError(f"{folder}: no run is recorded there ({error.strerror})") from error
    state = view.state()
    state.run_id, state.state = folder.absolute().name, "ended"
    return state


def _events(path: Path) -> Iterator[WorkersJoined | StepsTimed]:
    """The events of a recording; the torn last line of a driver that was killed is left out.

    Raises:
        JobError: A complete line is no event.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield msgspec.convert(_with_nan(json.loads(line)), WorkersJoined | StepsTimed)
            except (ValueError, AttributeError) as error:
                raise JobError(f"{path}:{number}: is no event of a run: {error}") from error


def _with_nan(event: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: what was not measured is null there."""
    rows = [_with_nan(row) for row in event.get("timings", ())]
    known = {name: math.nan if value is None else value for name, value in event.items()}
    return known | ({"timings": rows} if "timings" in event else {})


def _newest(runs: Path = Path("runs")) -> Path:
    found = [path for path in runs.glob("*") if path.is_dir()]
    if not found:
        raise JobError(f"no run in {runs.absolute()}: give its folder or its page's address")
    return max(found, key=lambda path: path.stat().st_mtime)


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
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)),
        _NoRedirect(),
    )

    def fetch() -> LiveState:
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return msgspec.json.decode(answer.read(MAX_STATE_BYTES), type=LiveState)
        except urllib.error.HTTPError as error:
            reason = "give the right --token-file" if error.code == UNAUTHORIZED else error.reason
            raise JobError(f"{url}: {error.code}: {reason}") from error
        except (OSError, HTTPException, msgspec.DecodeError) as error:
            raise JobError(f"{url}: no driver answers there ({error})") from error

    return fetch


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for this server alone."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Go nowhere else."""
