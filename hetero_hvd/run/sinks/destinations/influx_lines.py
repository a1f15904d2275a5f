"""InfluxDB's line protocol, in a file or to a server."""

from __future__ import annotations

import math
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from hetero_hvd.core.view.metric_names import PREFIX
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import TIMEOUT_SECONDS, place, secret

MAX_LINES = 5000
"""In one request."""

_ESCAPES = str.maketrans({",": r"\,", "=": r"\=", " ": r"\ ", "\n": r"\n", "\r": r"\r"})


class InfluxLines:
    """`influx:PATH`, or `influx:http://HOST:8086/api/v2/write?org=O&bucket=B`.

    The token comes from `INFLUX_TOKEN`. The protocol has neither NaN nor infinity: left out.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._server = url.partition(":")[2] if "://" in url else ""
        self.resumes = bool(self._server)

    def begin(self, run: RunStarted) -> None:
        """Make the file; a server is asked when there is something to write."""
        self._run_id = run.run_id
        if not self._server:
            self._file = Path(place(self._url)).open("wb")  # noqa: SIM115 - closed at the end

    def write(self, samples: Sequence[Sample]) -> None:
        """A line for each."""
        lines = list(self._lines(samples))
        for start in range(0, len(lines), MAX_LINES):
            text = "".join(lines[start : start + MAX_LINES]).encode()
            if self._server:
                _post(self._server, text)
            else:
                self._file.write(text)
                self._file.flush()

    def end(self, _state: str) -> None:
        """Close the file."""
        if not self._server:
            self._file.close()

    def _lines(self, samples: Sequence[Sample]) -> Iterator[str]:
        for one in samples:
            if math.isfinite(one.value):
                tags = {"run_id": self._run_id, **one.labels}.items()
                named = "".join(f",{key}={value.translate(_ESCAPES)}" for key, value in tags)
                fields = f"value={float(one.value)!r},step={one.step}i"
                yield f"{PREFIX}{one.family}{named} {fields} {one.at_unix_seconds * 1e9:.0f}\n"


def _post(url: str, lines: bytes) -> None:
    parts = urlsplit(url)
    if parts.username:  # as InfluxDB 1 has it
        own = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers = {"Authorization": f"Basic {b64encode(own).decode()}"}
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    else:
        token = secret("INFLUX_TOKEN")
        headers = {"Authorization": f"Token {token}"} if token else {}
    asked = urllib.request.Request(url, lines, headers, method="POST")  # noqa: S310 - http(s)
    with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS):  # noqa: S310
        return
