"""The door to fsspec: file systems behind URLs, with time limits and the system's errors."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec

from hetero_hvd.core.redaction import redacted
from hetero_hvd.errors import MissingPackageError, UserError, first_line

Result = TypeVar("Result")

TIMEOUT_SECONDS = 30.0
"""Without a byte from the server a request is given up and tried again, a few times."""

OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": TIMEOUT_SECONDS, "read_timeout": TIMEOUT_SECONDS}},
    "gs": {"requests_timeout": TIMEOUT_SECONDS},
}
"""For fsspec, by scheme; credentials come from the environment or the machine's own identity."""

EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs", "hf": "data", "http": "data", "https": "data"}
"""Scheme to the extra of this package that installs what reads it."""

NEAR = ("", "file", "memory")
"""Schemes behind which there is no server."""

FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors that come again, however often it is tried."""


def scheme_of(url: str) -> str:
    """What stands before ://; a path has none."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return found[1].lower() if found else ""


def shown_url(url: str) -> str:
    """A URL for people: without user, password and query, which may hold secrets."""
    if scheme_of(url) in NEAR:
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2] if scheme_of(url) != "hf" else parts.netloc
    return redacted(f"{parts.scheme}://{host}{parts.path}")


@contextmanager
def as_os_errors() -> Iterator[None]:
    """What goes wrong in a store's library, which has errors of its own, is one of the system.

    The text of some says what only with the name of their class.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        raise kind_of(error)(f"{type(error).__name__}: {first_line(error)}") from error


def kind_of(error: BaseException) -> type[OSError]:
    """The system's error that one of a library is most like."""
    kinds = (FileExistsError, *FINAL)
    found = next((kind for kind in kinds if isinstance(error, kind)), None)
    if found is not None:
        return found
    status = getattr(error, "status", None) or getattr(error, "code", None)
    status = status or getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, "401", "403"):
        return PermissionError
    return FileNotFoundError if status in (404, "404") else OSError


def open_file_system(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The file system behind a URL, and the URL's path there.

    Args:
        url: A path, or what fsspec reads.
        options: For the file system, over those that it has by default.

    Raises:
        MissingPackageError: What reads such URLs is not installed here.
        UserError: Nothing reads such URLs.
        OSError: The URL is none for it.
    """
    scheme = scheme_of(url)
    if scheme and scheme not in fsspec.available_protocols():
        raise UserError(
            f"{shown_url(url)}: nothing reads {scheme}://: must be a path or a URL that fsspec "
            "reads, such as s3://, gs://, https:// or hf://"
        )
    given = {**OPTIONS.get(scheme, {}), **(options or {})}
    if scheme not in NEAR:
        given.setdefault("use_listings_cache", False)
    try:
        with as_os_errors():
            files, root = fsspec.core.url_to_fs(url, **given)
    except ImportError as error:
        how = f"pip install 'hetero_hvd[{EXTRAS.get(scheme, scheme)}]'"
        raise MissingPackageError(f"{shown_url(url)}: {first_line(error)}: {how}") from error
    return files, root


class FileSystem:
    """The file system behind a URL, in whichever process it is used: a fork gets its own.

    Args:
        url: See `open_file_system`.
        options: See `open_file_system`.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url = url
        self._options = dict(options or {})
        self._opened: tuple[int, Any, str] | None = None
        self.is_near = scheme_of(url) in NEAR

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __call__(self) -> tuple[Any, str]:
        """The file system and the root in it."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *open_file_system(self._url, self._options))
        return self._opened[1:]


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """What a call gives, if it does in time; else it is left to itself.

    Args:
        seconds: So long; a library's own limits may be longer, or none.
        call: Runs in a thread.

    Raises:
        TimeoutError: It did not end.
    """
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            found.set_exception(error)

    threading.Thread(target=run, name="data request", daemon=True).start()
    try:
        return found.result(seconds)
    except TimeoutError:
        if found.done():
            raise
        raise TimeoutError(f"no answer in {seconds:g} s") from None


def check_url(url: object) -> str:
    """A path or URL as text.

    Raises:
        UserError: It is neither.
    """
    if isinstance(url, os.PathLike):
        url = os.fspath(url)
    if not isinstance(url, str) or not url.strip():
        raise UserError(
            f"data at {url!r}: must be a path or a URL such as s3://bucket/train, gs://…, "
            "https://… or hf://datasets/owner/name"
        )
    if "::" in url:
        raise UserError(
            "data at a chained URL (…::…): not supported: name the place itself; what is read is "
            "cached anyway"
        )
    return url
