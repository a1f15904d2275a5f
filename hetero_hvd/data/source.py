"""Where data are: files below a path or URL, listed once and read with retries and time limits."""

from __future__ import annotations

import hashlib
import io
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from hetero_hvd.core.data.file_sets import FileFacts, file_set
from hetero_hvd.core.redaction import encodable
from hetero_hvd.data import arguments
from hetero_hvd.data.cache import DEFAULT_BYTES, Cache
from hetero_hvd.data.file_system import (
    FINAL,
    TIMEOUT_SECONDS,
    WEB,
    FileSystem,
    as_os_errors,
    check_url,
    counted,
    scheme_of,
    shown_url,
    within,
    without_secrets,
)
from hetero_hvd.data.identity import identity_of
from hetero_hvd.data.listing import Listing, announce
from hetero_hvd.data.read_meter import ReadMeter
from hetero_hvd.data.walk import FoundFiles, facts_of, found_below
from hetero_hvd.errors import UnreadableError, UserError, first_line

Result = TypeVar("Result")

ATTEMPTS, MOST_ATTEMPTS = 4, 100
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 60.0
"""Before the second attempt, and before any; twice as long before each further one."""

SHORTEST_SECONDS, LONGEST_SECONDS = 0.001, 86400.0
"""Of an attempt."""

STREAM_BYTES, NEAR_BYTES = 2**20, 2**12
"""Asked for at once by who reads a file piece by piece, of a server and of this machine."""

MOST_CACHE_BYTES = 1e18

LISTING_RATIO = 20
"""A listing of a million files is many requests: with all its attempts it has so many times the
time of one, as long as one after the other is answered."""

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
        attempts: Of each request, 1 to 100.
        timeout_seconds: Of each attempt, > 0, at most a day.

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
        self.shown = shown_url(given).rstrip("/") or "/"
        where = f"data at {self.shown}"
        options = arguments.options(storage_options, where, "storage_options")
        most_bytes = arguments.number(
            cache_bytes, where, "cache_bytes", least=0, most=MOST_CACHE_BYTES
        )
        folder = arguments.folder(cache_folder, where, "cache_folder")
        self._attempts = arguments.whole_number(
            attempts, where, "attempts", least=1, most=MOST_ATTEMPTS
        )
        self._timeout_seconds = arguments.number(
            timeout_seconds,
            where,
            "timeout_seconds",
            least=SHORTEST_SECONDS,
            most=LONGEST_SECONDS,
        )
        self._scheme = scheme_of(given)
        self._files = FileSystem(given, options)
        self._identity = identity_of(given, options)
        self._own_name = ""
        self._cache = Cache(folder, 0 if self._files.is_near else int(most_bytes))
        self.is_near = self._files.is_near
        self.is_file = False
        self.meter = ReadMeter(self.shown)

    def find(self, suffixes: Sequence[str] = ()) -> Contents:
        """All files below it; hidden ones, whose names begin with a dot, are left out.

        Args:
            suffixes: Of the names, whatever their case; empty: all.

        Raises:
            UserError: It cannot be listed, or there is no such file; says why.
        """
        wanted = "a list of texts that differ, such as ['.txt']"
        given = arguments.texts(suffixes, f"data at {self.shown}", "suffixes", wanted)
        endings = tuple(suffix.lower() for suffix in given)
        try:
            found = self._listed(endings)
        except FINAL as error:
            kind = "no access" if isinstance(error, PermissionError) else "not found"
            raise UserError(f"data at {self.shown}: {kind}: {_said(error)}") from error
        except OSError as error:
            raise UserError(f"data at {self.shown}: cannot be listed: {_said(error)}") from error
        if not found.files:
            what = f"no {', '.join(endings)} file" if endings else "no file"
            others = f" among {found.num_others} files" if found.num_others else ""
            raise UserError(f"data at {self.shown}: {what} there{others}")
        self.is_file = found.is_file
        self._own_name = found.files[0].name if found.is_file else ""
        return Contents(Listing(found.files), tuple(sorted(found.folders)))

    def beside(self, suffix: str) -> FileFacts | None:
        """Of a source that is one file: the file whose address has this behind it, if there is one.

        Raises:
            UserError: It cannot be asked for.
        """
        files, root = self._files()

        def look() -> FileFacts:
            with as_os_errors():
                return facts_of(f"{self._own_name}{suffix}", files.info(f"{root}{suffix}"))

        try:
            return self._requested(look, "reading")
        except FINAL:
            return None
        except OSError as error:
            raise UserError(f"data at {self.shown}{suffix}: {_said(error)}") from error

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
        if self.is_file:
            return self.shown + name.removeprefix(self._own_name)
        return f"{self.shown}/{name}"

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
            content = self._requested(call, "reading")
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
                files.pipe_file(self._path(root, name), content)

        try:
            self._requested(put, "writing")
        except OSError as error:
            raise UserError(f"{self.place(name)}: {_said(error)}") from error

    def _path(self, root: str, name: str) -> str:
        """Of a file in its file system; a source that is a file has others beside it."""
        below = name.removeprefix(self._own_name) if self.is_file else f"/{name}"
        below = quote(below) if self._scheme in WEB else below
        return f"{root if self.is_file else root.rstrip('/')}{below}"

    def _piece(self, file: FileFacts, start: int, stop: int) -> bytes:
        key = "\0".join([self._identity, file.name, str(file.size), file.tag, f"{start}-{stop}"])
        is_kept = file.size >= 0
        content = self._cache.get(key) if is_kept else None
        if content is None:
            content = self._requested(lambda: self._fetched(file, start, stop), "reading")
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
        with as_os_errors():
            limits = {} if stop is None else {"start": start, "end": stop}
            content: bytes = files.cat_file(self._path(root, file.name), **limits)
        return content

    def _listed(self, suffixes: tuple[str, ...]) -> FoundFiles:
        """What is there.

        Raises:
            OSError: It cannot be listed.
            UserError: See `found_below`.
        """
        files, root = self._requested(self._files, "opening")
        call = partial(found_below, files, root, self._scheme, suffixes)
        if self._files.is_near:
            return call()
        answers = counted(files)
        until_seconds = time.monotonic() + LISTING_RATIO * self._timeout_seconds

        def listed() -> FoundFiles:
            left_seconds = max(SHORTEST_SECONDS, until_seconds - time.monotonic())
            seconds = left_seconds if answers is None else self._timeout_seconds
            return within(
                min(seconds, left_seconds), call, answers=answers, most_seconds=left_seconds
            )

        return self._tried(listed, "listing", until_seconds=until_seconds)

    def _requested(self, call: Callable[[], Result], doing: str) -> Result:
        """What a request gives, each of whose attempts has its time; see `_tried`."""
        if self._files.is_near:
            return self._tried(call, doing)
        return self._tried(partial(within, self._timeout_seconds, call), doing)

    def _tried(
        self, call: Callable[[], Result], doing: str, *, until_seconds: float = math.inf
    ) -> Result:
        """What a call gives, in one of some attempts.

        Args:
            call: Has its own limit of time.
            doing: Begins what is said if all fail.
            until_seconds: No attempt begins later, by the monotonic clock.

        Raises:
            OSError: Of the last attempt.
        """
        for attempt in range(1, self._attempts + 1):
            try:
                return call()
            except FINAL:
                raise
            except OSError as error:
                pause_seconds = min(PAUSE_SECONDS * 2 ** (attempt - 1), MOST_PAUSE_SECONDS)
                is_late = time.monotonic() + pause_seconds >= until_seconds
                if attempt == self._attempts or self._files.is_near or is_late:
                    times = f" (after {attempt} attempts)" if attempt > 1 else ""
                    raise type(error)(f"{doing} has failed: {first_line(error)}{times}") from error
                time.sleep(pause_seconds)
        raise AssertionError


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
    return without_secrets(first_line(error))


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The requests of a read; of a file whose size is not known, one."""
    if stop - start <= PIECE_BYTES:
        yield start, stop
        return
    for first in range(start, stop, PIECE_BYTES):
        yield first, min(stop, first + PIECE_BYTES)


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
