"""The door to fsspec: file systems behind URLs, with time limits and the system's errors."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import fsspec

from hetero_hvd.core.redaction import redacted
from hetero_hvd.data.arguments import shown
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

WEB = ("http", "https")
"""Schemes whose addresses may have a query, which belongs to each request."""

REQUESTS = ("_call_s3", "_call", "_ls", "_info")
"""Methods of fsspec's file systems that make one request: while such end, a listing goes on."""

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/?#@'\"<>]*@)?(?P<place>[^\s?#'\"<>]*)[^\s'\"<>)\]]*"
)

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


def split_query(url: str) -> tuple[str, list[tuple[str, str]]]:
    """An address of the web without its query and fragment, and the query's names and values."""
    parts = urlsplit(url)
    return parts._replace(query="", fragment="").geturl(), parse_qsl(
        parts.query, keep_blank_values=True
    )


def below(url: str, name: str) -> str:
    """The URL of a file in a folder; a query stays behind."""
    mark = "?" if scheme_of(url) in WEB else "\0"
    address, question, query = url.partition(mark)
    return f"{address.rstrip('/')}/{name}{question}{query}"


def without_secrets(text: str) -> str:
    """What a library has said, without the users, passwords and queries of the URLs in it."""
    return redacted(_URL.sub(r"\g<scheme>\g<place>", text))


@contextmanager
def as_os_errors() -> Iterator[None]:
    """What goes wrong in a store's library, which has errors of its own, is one of the system.

    The text of some says what only with the name of their class. One that has a secret in it does
    not stand in the traceback either.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        said = without_secrets(first_line(error))
        told = kind_of(error)(f"{type(error).__name__}: {said}")
        if _has_secrets(error):
            raise told from None
        raise told from error


def _has_secrets(error: BaseException | None) -> bool:
    """Whether its traceback, with the errors that it comes from, would show one."""
    while error is not None:
        if without_secrets(str(error)) != str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


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
    given = {**OPTIONS.get(scheme, {}), **(options or {})}
    if scheme in WEB:
        url, query = split_query(url)
        if query and "params" in given:
            raise UserError(
                f"{shown_url(url)}: storage_options has params, and the URL a query: give all of "
                "it in one of them"
            )
        given |= {"params": query} if query else {}
    if scheme and scheme not in fsspec.available_protocols():
        raise UserError(
            f"{shown_url(url)}: nothing reads {scheme}://: must be a path or a URL that fsspec "
            "reads, such as s3://, gs://, https:// or hf://"
        )
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


Answers = Callable[[], int]


def counted(files: Any) -> Answers | None:  # noqa: ANN401 - of fsspec
    """Count the requests of a file system that are answered, from now on; None: it cannot tell.

    Args:
        files: A file system of fsspec, which may serve others as well.
    """
    methods = [name for name in REQUESTS if hasattr(files, name)]
    if not methods or not getattr(files, "async_impl", False):
        return None
    if "_answers_counted" not in vars(files):
        counts = [0]
        for name in methods:
            setattr(files, name, _counting(getattr(files, name), counts))
        files._answers_counted = counts  # noqa: SLF001 - a name of ours
    found: list[int] = files._answers_counted  # noqa: SLF001 - as above
    return lambda: found[0]


def _counting(
    request: Callable[..., Awaitable[Result]], counts: list[int]
) -> Callable[..., Awaitable[Result]]:
    @wraps(request)
    async def made(*arguments: Any, **options: Any) -> Result:  # noqa: ANN401 - passed on as they are
        result = await request(*arguments, **options)
        counts[0] += 1
        return result

    return made


def within(
    seconds: float,
    call: Callable[[], Result],
    *,
    answers: Answers | None = None,
    most_seconds: float = 0.0,
) -> Result:
    """What a call gives, if it does in time; else it is left to itself.

    Args:
        seconds: So long; a library's own limits may be longer, or none.
        call: Runs in a thread.
        answers: Tells how many of its requests were answered: so long after one of them.
        most_seconds: With `answers`: so long in all.

    Raises:
        TimeoutError: It did not end.
    """
    found: Future[Result] = Future()
    most_at_seconds = time.monotonic() + most_seconds

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            found.set_exception(error)

    threading.Thread(target=run, name="data request", daemon=True).start()
    while True:
        num_answers = answers() if answers is not None else 0
        try:
            return found.result(seconds)
        except TimeoutError:
            if found.done():
                return found.result()
        if answers is None or answers() == num_answers:
            raise TimeoutError(f"no answer in {seconds:g} s")
        if time.monotonic() >= most_at_seconds:
            raise TimeoutError(f"not at its end after {most_seconds:g} s")


def check_url(url: object) -> str:
    """A path or URL as text, its scheme in lower case.

    Raises:
        UserError: It is neither.
    """
    if isinstance(url, os.PathLike):
        url = os.fspath(url)
    if not isinstance(url, str) or not url.strip():
        raise UserError(
            f"data at {shown(url)}: must be a path or a URL such as s3://bucket/train, gs://…, "
            "https://… or hf://datasets/owner/name"
        )
    if "::" in url:
        raise UserError(
            "data at a chained URL (…::…): not supported: name the place itself; what is read is "
            "cached anyway"
        )
    scheme = scheme_of(url)
    try:
        _ = urlsplit(url).port if scheme in WEB else urlsplit(url)
    except ValueError:
        raise UserError(
            f"data at {scheme}://…: is no URL: must be such as {scheme}://host/path"
        ) from None
    return f"{scheme}{url[len(scheme) :]}"
