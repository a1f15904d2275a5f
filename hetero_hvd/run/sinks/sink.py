"""What a destination promises, and how one is found by the URL that names it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO
from urllib.parse import parse_qsl, unquote

from hetero_hvd.core.redaction import HIDDEN, redacted
from hetero_hvd.errors import JobError, UserError, first_line
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample

GROUP = "hetero_hvd.sinks"
"""Of entry points: each is named after the scheme of its URLs, and gives a class."""

OWN = {
    scheme: f"hetero_hvd.run.sinks.destinations.{place}"
    for scheme, place in {
        "csv": "csv_file:CsvFile",
        "json": "json_file:JsonFile",
        "parquet": "parquet_file:ParquetFile",
        "openmetrics": "openmetrics_file:OpenMetricsFile",
        "tensorboard": "tensorboard_folder:TensorBoardFolder",
        "wandb": "wandb_run:WandbRun",
        "mlflow": "mlflow_run:MlflowRun",
        "postgresql": "postgresql_tables:PostgresqlTables",
        "influx": "influx_lines:InfluxLines",
        "redis": "redis_hash:RedisHash",
        "kubernetes": "kubernetes_object:KubernetesObject",
    }.items()
}
"""Those that come with the package. setup.py registers them as any other's are; a checkout that is
not installed, or by an earlier version, has no such metadata."""

_SECRET_NAMES = ("password", "p", "token")
"""In the query of a URL."""

TIMEOUT_SECONDS = 10.0
"""For a destination in a network to connect, and to answer."""


class Sink(Protocol):
    """A destination of one run's samples, made from its URL. Used by one thread; may block there.

    Whatever it raises is told in one line, without the password of its URL.

    Attributes:
        resumes: Whether another one of the same URL may go on where this one has failed.
    """

    resumes: bool

    def begin(self, run: RunStarted) -> None:
        """Connect, or make the file."""

    def write(self, samples: Sequence[Sample]) -> None:
        """Take samples; of a name mostly, but not always, in the order of time."""

    def end(self, state: str) -> None:
        """Write what waits and close.

        Args:
            state: Why the run has ended, `running` or `no end recorded`.
        """


def schemes() -> dict[str, str]:
    """Scheme of a URL to `module:class`."""
    found = importlib.metadata.entry_points(group=GROUP)
    return OWN | {entry.name: entry.value for entry in found}


def open_sink(url: str) -> Sink:
    """The sink that a URL names; nothing is opened yet.

    Raises:
        JobError: There is none of that kind, or what it needs is not installed.
        UserError: The URL is none for it.
    """
    scheme, _, _ = url.partition(":")
    known = schemes()
    if ":" not in url or scheme not in known:
        raise JobError(f"{shown(url)}: must begin with {', '.join(f'{s}:' for s in known)}")
    module, _, name = known[scheme].partition(":")
    try:
        made: Sink = getattr(importlib.import_module(module), name)(url)
    except ImportError as error:
        raise JobError(f"{shown(url)}: {error}") from error
    return made


def library(name: str, extra: str) -> Any:  # noqa: ANN401 - a module
    """A library that not everybody has.

    Args:
        name: Of the module.
        extra: Of hetero_hvd, with which it comes.

    Raises:
        ImportError: It is not installed; says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(f"needs {package}: pip install 'hetero_hvd[{extra}]'") from error


def place(url: str) -> str:
    """What comes after the scheme of a URL such as `csv:run.csv`."""
    return url.partition(":")[2].removeprefix("//")


def text_file(url: str) -> TextIO:
    """The file of a URL such as `csv:run.csv`, to be written; `csv:-` is standard output.

    Raises:
        UserError: No file is named.
    """
    path = place(url)
    if path == "-":
        return sys.stdout
    if not path:
        raise UserError(f"{url}: must name a file, as in {url}run.txt, or be {url}-")
    return Path(path).open("w", encoding="utf-8", newline="")


def close_file(file: TextIO) -> None:
    """Close a file that `text_file` has given."""
    file.flush()
    if file is not sys.stdout:
        file.close()


def secret(name: str) -> str:
    """A credential from the environment, where it is in no list of processes; empty: none."""
    return os.environ.get(name, "")


_PASSWORD = re.compile(r"(?<=://)(?P<user>[^:@/]*):(?P<password>.*)@", re.DOTALL)
_QUERY = re.compile(r"\?(?P<query>.*)", re.DOTALL)


def shown(url: str) -> str:
    """A URL without its secrets: passwords, and whatever its query holds."""
    return redacted(_QUERY.sub(f"?{HIDDEN}", _PASSWORD.sub(rf"\g<user>:{HIDDEN}@", url)))


def _secrets(url: str) -> Iterator[str]:
    """What a message about a URL must not repeat."""
    if found := _PASSWORD.search(url):
        yield from (found["password"], unquote(found["password"]))
    if found := _QUERY.search(url):
        yield from (value for name, value in parse_qsl(found["query"]) if name in _SECRET_NAMES)


@contextmanager
def told(url: str) -> Iterator[None]:
    """Around the calls of a sink: what it raises is one line that names it and hides its secrets.

    Raises:
        JobError: It has raised something.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        words = first_line(error) if not isinstance(error, OSError) else str(error)
        for one in filter(None, _secrets(url)):
            words = words.replace(one, HIDDEN)
        raise JobError(f"export to {shown(url)}: {redacted(words)}") from error
