"""Where data are: files below a path or URL, listed once and read with retries and time limits."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from hetero_hvd.core.data.file_sets import FileFacts, file_set
from hetero_hvd.core.redaction import encodable, redacted
from hetero_hvd.data.cache import DEFAULT_BYTES, Cache
from hetero_hvd.data.file_system import (
    FINAL,
    TIMEOUT_SECONDS,
    FileSystem,
    as_os_errors,
    check_url,
    scheme_of,
    shown_url,
    within,
)
from hetero_hvd.data.listing import Listing
from hetero_hvd.data.opened import announce
from hetero_hvd.data.read_meter import ReadMeter
from hetero_hvd.errors import UnreadableError, UserError, first_line

Result = TypeVar("Result")

ATTEMPTS = 4
PAUSE_SECONDS = 0.5
"""Before the second attempt; twice as long before each further one."""

STREAM_BYTES, NEAR_BYTES = 2**20, 2**12
"""Asked for at once by who reads a file piece by piece, of a server and of this machine."""

LISTING_RATIO = 20
"""A listing of a million files is many requests: it has so many times the time of one."""

PIECE_BYTES = 16 * 2**20
"""Longer reads are made in requests of this size, each of which has its own time and attempts."""

CHECKSUMS = ("md5", "sha256")
"""Tags by which what was read is checked."""


class Contents(NamedTuple):
    """What is below a source.

    Attributes:
        files: Sorted by name; relative names.
        folders: Names of the folders at the top, also of those without files where there are such.
    """

    files: Listing
    folders: tuple[str, ...]


class Source:
    """Files below a path or URL that fsspec reads: `s3://`, `gs://`, `https://`, `hf://`, a path.

    What comes from a server is kept on this node, see `Cache`. A request that fails, stalls or
    gives something else than the listing says is tried again, with pauses. May be handed to loader
    processes, forked or not.

    Args:
        url: A folder, or one file.
        storage_options: For fsspec's file system, such as an endpoint; credentials are better left
            to the environment.
        cache_bytes: What this node keeps of all sources together in that folder; 0: nothing.
        cache_folder: None: in the user's cache folder.
        attempts: Of each request, >= 1.
        timeout_seconds: Of each attempt, > 0.

    Attributes:
        shown: The URL without what may be secret.
        meter: How long it is read.
        is_near: Whether there is no server in between.
        is_file: Whether it is one file, once it was listed.

    Raises:
        UserError: An argument is none of these.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache_bytes: int = DEFAULT_BYTES,
        cache_folder: str | os.PathLike[str] | None = None,
        attempts: int = ATTEMPTS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        given = check_url(url)
        if attempts < 1 or timeout_seconds <= 0 or cache_bytes < 0:
            raise UserError(
                f"data at {shown_url(given)}: must be attempts >= 1, timeout_seconds > 0 and "
                f"cache_bytes >= 0: {attempts}, {timeout_seconds:g} and {cache_bytes}"
            )
        self.shown = shown_url(given).rstrip("/") or "/"
        self._scheme = scheme_of(given)
        self._is_web = self._scheme in ("http", "https")
        self._files = FileSystem(given, storage_options)
        self._attempts = attempts
        self._timeout_seconds = timeout_seconds
        folder = None if cache_folder is None else Path(cache_folder)
        self._cache = Cache(folder, 0 if self._files.is_near else cache_bytes)
        self.is_near = self._files.is_near
        self.is_file = False
        self.meter = ReadMeter(self.shown)

    def find(self, suffixes: tuple[str, ...] = ()) -> Contents:
        """All files below it; hidden ones, whose names begin with a dot, are left out.

        Args:
            suffixes: Of the names, in lower case; empty: all.

        Raises:
            UserError: It cannot be listed, or there is no such file; says why.
        """
        try:
            seconds = LISTING_RATIO * self._timeout_seconds
            found, folders = self._tried(self._list, seconds, "listing")
        except FINAL as error:
            kind = "no access" if isinstance(error, PermissionError) else "not found"
            raise UserError(f"data at {self.shown}: {kind}: {_said(error)}") from error
        except OSError as error:
            raise UserError(f"data at {self.shown}: cannot be listed: {_said(error)}") from error
        files = Listing(file for file in found if _is_wanted(file.name, suffixes))
        if not files:
            what = f"no {', '.join(suffixes)} file" if suffixes else "no file"
            others = f" among {len(found)} files" if found else ""
            raise UserError(f"data at {self.shown}: {what} there{others}")
        return Contents(files, tuple(sorted(folders)))

    def announce(self, what: str, files: Iterable[FileFacts]) -> None:
        """All workers must have these files: they are compared when a worker is admitted.

        Args:
            what: Which kind of data.
            files: Those that are used.
        """
        place = urlsplit(self.shown)
        store = f"{place.scheme}://{place.netloc}" if not self._files.is_near else ""
        announce(file_set(encodable(f"{what} {self.shown}"), files, store=store))

    def read(self, file: FileFacts, start: int = 0, stop: int | None = None) -> bytes:
        """A file, or a part of it.

        Args:
            file: Of the listing.
            start: First byte, >= 0.
            stop: Byte after the last one; None: to its end.

        Raises:
            UnreadableError: It cannot be read as the listing says; names it, and says why.
        """
        with self.meter.timing("read_seconds"):
            end = file.size if stop is None else stop
            is_whole = start == 0 and end == file.size
            try:
                content = b"".join(
                    self._piece(file, first, last) for first, last in _pieces(start, end)
                )
                if is_whole:
                    _check(file, content)
            except OSError as error:
                raise UnreadableError(f"{self.place(file.name)}: {_said(error)}") from error
        self.meter.add("num_bytes", len(content))
        return content

    def place(self, name: str) -> str:
        """A file's name for people."""
        return self.shown if self.is_file else f"{self.shown}/{name}"

    def stream(self, file: FileFacts) -> io.BufferedReader:
        """A file to be read piece by piece; see `read`."""
        return io.BufferedReader(
            _FileStream(self, file), NEAR_BYTES if self.is_near else STREAM_BYTES
        )

    def require_ranges(self, file: FileFacts) -> None:
        """See that a part of a file can be read without the rest.

        Raises:
            UserError: Its server gives files as a whole only, or nothing.
        """
        try:
            call = partial(self._given, file, 0, 1)
            content = self._tried(call, self._timeout_seconds, "reading")
        except OSError as error:
            raise UserError(f"{self.place(file.name)}: {_said(error)}") from error
        if len(content) != 1:
            raise UserError(
                f"{self.place(file.name)}: cannot be positioned: its server gives whole files only"
            )

    def write(self, name: str, content: bytes) -> None:
        """Put a file there.

        Raises:
            UserError: It cannot be put.
        """
        files, root = self._files()

        def put() -> None:
            with as_os_errors():
                files.pipe_file(f"{root.rstrip('/')}/{name}", content)

        try:
            self._tried(put, self._timeout_seconds, "writing")
        except OSError as error:
            raise UserError(f"{self.shown}/{name}: {_said(error)}") from error

    def _piece(self, file: FileFacts, start: int, stop: int) -> bytes:
        key = "\0".join([self.place(file.name), str(file.size), file.tag, f"{start}-{stop}"])
        is_kept = file.size >= 0
        content = self._cache.get(key) if is_kept else None
        if content is None:
            content = self._tried(
                lambda: self._fetched(file, start, stop), self._timeout_seconds, "reading"
            )
            if is_kept:
                self._cache.put(key, content)
        return content

    def _fetched(self, file: FileFacts, start: int, stop: int) -> bytes:
        """From the store.

        Raises:
            OSError: It has failed, or gives something else than the listing says.
        """
        is_whole = start == 0 and stop in (file.size, -1)
        content = self._given(file, start, None if is_whole else stop)
        if not is_whole and len(content) == file.size:  # its server does not know ranges
            content = content[start:stop]
        if file.size >= 0 and len(content) != stop - start:
            raise OSError(
                f"it gave {len(content)} bytes of {stop - start}, as the listing says: it has "
                "changed, or its server is wrong"
            )
        if is_whole:
            _check(file, content)
        return content

    def _given(self, file: FileFacts, start: int, stop: int | None) -> bytes:
        """What the store gives when it is asked for a part, or with None for all.

        Raises:
            OSError: It has failed.
        """
        files, root = self._files()
        name = quote(file.name) if self._is_web else file.name
        path = root if self.is_file else f"{root.rstrip('/')}/{name}"
        with as_os_errors():
            limits = {} if stop is None else {"start": start, "end": stop}
            content: bytes = files.cat_file(path, **limits)
        return content

    def _tried(self, call: Callable[[], Result], seconds: float, doing: str) -> Result:
        """What a call gives, in one of some attempts.

        Raises:
            OSError: Of the last attempt.
        """
        for attempt in range(1, self._attempts + 1):
            try:
                return call() if self._files.is_near else within(seconds, call)
            except FINAL:
                raise
            except OSError as error:
                if attempt == self._attempts or self._files.is_near:
                    times = f" (after {attempt} attempts)" if attempt > 1 else ""
                    raise type(error)(f"{doing} has failed: {first_line(error)}{times}") from error
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        raise AssertionError

    def _list(self) -> tuple[list[FileFacts], set[str]]:
        """All files and the folders at the top.

        Raises:
            OSError: It cannot be listed.
        """
        files, root = self._files()
        if self._scheme in ("", "file"):
            found, folders, self.is_file = _walked(Path(root))
            return found, folders
        with as_os_errors():
            infos = files.find(root, withdirs=True, detail=True)
            own = {root.rstrip("/"), f"{root.rstrip('/')}/"}  # a file; the folder's page or marker
            self.is_file = root in infos and infos.keys() <= own
            if self.is_file:
                infos = {root: files.info(root)}
            infos = infos if self.is_file else {p: i for p, i in infos.items() if p not in own}
            if self._is_web:
                infos = _with_sizes(files, infos)
        found, folders = [], set()
        for path, info in infos.items():
            name = path.removeprefix(root).strip("/") or path.rpartition("/")[2]
            name = unquote(name) if self._is_web else name
            if info.get("type") == "directory":
                folders |= {name} if "/" not in name else set()
            elif not self._is_web or "?" not in path:
                found.append(FileFacts(name, _size(info), _tag(info)))
                folders |= {name.partition("/")[0]} if "/" in name else set()
        return found, folders


class _FileStream(io.RawIOBase):
    """A file as Python's own are, for who reads it piece by piece.

    Args:
        source: Where it is.
        file: Which, of a known size.
    """

    def __init__(self, source: Source, file: FileFacts) -> None:
        super().__init__()
        self._source = source
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """See `io.IOBase`."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - a writable buffer
        """See `io.RawIOBase`."""
        stop = min(self._file.size, self._at + len(buffer))
        content = self._source.read(self._file, self._at, stop) if stop > self._at else b""
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _said(error: BaseException) -> str:
    return redacted(first_line(error))


def _is_wanted(name: str, suffixes: tuple[str, ...]) -> bool:
    is_hidden = any(part.startswith(".") for part in name.split("/"))
    return not is_hidden and (not suffixes or name.lower().endswith(suffixes))


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The requests of a read; of a file whose size is not known, one."""
    if stop - start <= PIECE_BYTES:
        yield start, stop
        return
    for first in range(start, stop, PIECE_BYTES):
        yield first, min(stop, first + PIECE_BYTES)


def _walked(root: Path) -> tuple[list[FileFacts], set[str], bool]:
    """Files below a folder of this machine, its folders, and whether it is a file itself."""
    if root.is_file():
        return [FileFacts(root.name, root.stat().st_size)], set(), True
    if not root.is_dir():
        raise FileNotFoundError(f"no such file or folder on {os.uname().nodename}: {root}")
    found, folders = [], set()
    top = len(root.parts)

    def refuse(error: OSError) -> None:
        raise error

    for folder, below, names in os.walk(root, followlinks=True, onerror=refuse):
        parts = Path(folder).parts[top:]
        folders |= set() if parts else set(below)
        for name in names:
            size = os.stat(os.path.join(folder, name)).st_size  # noqa: PTH116, PTH118 - fast
            found.append(FileFacts("/".join([*parts, name]), size))
    return found, folders, False


def _with_sizes(files: Any, infos: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """An index page does not tell the sizes: each file is asked for its own."""
    unknown = [p for p, info in infos.items() if info["type"] == "file" and not info.get("size")]
    found = files.sizes(unknown) if unknown else []
    sizes = dict(zip(unknown, found, strict=True))
    return {p: {**info, "size": sizes.get(p, info.get("size"))} for p, info in infos.items()}


def _size(info: Mapping[str, Any]) -> int:
    size = info.get("size")
    return -1 if size is None else int(size)


def _tag(info: Mapping[str, Any]) -> str:
    """What a store says of a content, as `kind:value`."""
    if md5 := info.get("md5Hash"):
        try:
            return f"md5:{base64.b64decode(md5, validate=True).hex()}"
        except (binascii.Error, ValueError):
            return f"opaque:{md5}"
    lfs = info.get("lfs")
    digest = getattr(lfs, "sha256", None) or (lfs.get("sha256") if isinstance(lfs, dict) else None)
    if digest:
        return f"sha256:{digest}"
    for name in ("ETag", "etag", "blob_id", "crc32c"):
        if value := info.get(name):
            return f"{name.lower()}:{str(value).strip(chr(34))}"
    return ""


def _check(file: FileFacts, content: bytes) -> None:
    """See that a whole content is what its store says.

    Raises:
        OSError: It is not.
    """
    kind, _, value = file.tag.partition(":")
    if kind in CHECKSUMS and hashlib.new(kind, content, usedforsecurity=False).hexdigest() != value:
        raise OSError(f"its {kind} is not what its store says: it was changed on its way")
    if file.size >= 0 and len(content) != file.size:
        raise OSError(f"it has {len(content)} bytes, and {file.size} in the listing")
