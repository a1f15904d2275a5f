"""Every error that hetero_hvd raises on purpose, arranged by what the catcher does.

HeteroHvdError
├── UserError             the input is wrong: print one line, exit 2, no traceback
│   ├── ConfigError
│   ├── InfeasiblePlanError
│   ├── JobError
│   │   └── TryAgainError    the input may be right: one line, exit 75
│   ├── MalformedDataError
│   ├── MissingPackageError
│   └── NodeError
├── TransientError        the world hiccuped: retry with back-off, then escalate
│   ├── DiscoveryError
│   └── ChannelError
├── WorkerFault           one worker is to blame: go on without it
│   ├── UnreadableError
│   └── WorkerLostError
└── InvariantError        we are to blame: say what was expected and what was found, abort

Horovod's `HorovodInternalError` and `HostsUpdatedInterrupt` are control flow; nothing here wraps,
subclasses or catches them outside `worker/comm/horovod.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

_Read = TypeVar("_Read")

MAX_NODES = 8
"""That a message names."""

LASTING_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EADDRNOTAVAIL,
        errno.EAFNOSUPPORT,
        errno.EEXIST,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTSUP,
        errno.EPERM,
        errno.EROFS,
        -2,  # EAI_NONAME of getaddrinfo
        -5,  # EAI_NODATA
        -6,  # EAI_FAMILY
        -9,  # EAI_ADDRFAMILY: an IPv6 address, say, where IPv4 is needed
    }
)
"""Of the system: what was asked for is wrong, and stays so until somebody changes it."""

LASTING_KINDS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""The same of a library's errors, which come without a number."""


class HeteroHvdError(Exception):
    """Base class: everything that hetero_hvd raises on purpose."""


class UserError(HeteroHvdError):
    """The input is wrong. The message says where, what was found and what is allowed.

    Args:
        lines: For people, a problem each. What stands in one, a path with a line break say, makes
            no two of it.

    Attributes:
        may_pass: Whether the same command may succeed later, without any change of the input.
    """

    may_pass = False

    def __init__(self, *lines: object) -> None:
        super().__init__(*lines)
        self.lines = tuple(map(str, lines))

    def __str__(self) -> str:
        return "\n".join(self.lines)


class ConfigError(UserError):
    """One or more settings are wrong.

    Attributes:
        problems: One line for each problem, in the order of the file; never empty.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)


class MalformedDataError(UserError):
    """A file of the data is not what it should be, wherever it is read; one line."""

    def __init__(self, text: str) -> None:
        super().__init__(_without_traceback(text, type(self)))


class InfeasiblePlanError(UserError):
    """The workers together cannot hold the global batch: each of them has a limit.

    Args:
        nodes: Theirs, in which the limits are set; the first few are named.

    Attributes:
        global_batch_size: What was asked for, samples per step.
        capacity: What the workers can hold, samples per step.
    """

    def __init__(self, *, global_batch_size: int, capacity: int, nodes: Sequence[str]) -> None:
        more = len(nodes) - MAX_NODES
        named = ", ".join(nodes[:MAX_NODES]) + (f" and {more} more" if more > 0 else "")
        super().__init__(
            f"global_batch_size={global_batch_size} does not fit: by max_local_batch_size of "
            f"{named} the workers hold at most {capacity} samples per step; raise that, lower the "
            "batch, or add a node"
        )
        self.global_batch_size = global_batch_size
        self.capacity = capacity


class JobError(UserError):
    """The job cannot start or go on, for a reason that the user can remove."""


class TryAgainError(JobError):
    """The job cannot start or go on now, though its input may be right: the same command may later.

    Too few nodes are there, say, or the network is down. Whoever starts jobs does so again.
    """

    may_pass = True


class MissingPackageError(UserError, ImportError):
    """A package is not installed here that what was asked for needs."""


class NodeError(UserError):
    """Something on one node, or on the way to it, does not work.

    Attributes:
        what: The fact.
        remedy: What to do.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; to do: {remedy}")
        self.what = what
        self.remedy = remedy


class TransientError(HeteroHvdError):
    """The world hiccuped: try again."""


class DiscoveryError(TransientError):
    """The list of nodes could not be read this time."""


class ChannelError(TransientError):
    """The channel between worker and driver broke, or a frame on it was not genuine."""


class WorkerFault(HeteroHvdError):  # noqa: N818 - a fault of one worker, not an error of ours
    """One worker is to blame: go on without it."""


class UnreadableError(WorkerFault):
    """A file of the data could not be read here, however often it was tried; one line."""

    def __init__(self, text: str) -> None:
        super().__init__(_without_traceback(text, type(self)))


class WorkerLostError(WorkerFault):
    """This worker is no longer a member of the job."""


class InvariantError(HeteroHvdError):
    """We are to blame: something that must always hold does not."""


class AllWrong:
    """Collects what is wrong in several places, so that all of it is told at once."""

    def __init__(self) -> None:
        self._found: list[UserError] = []

    def take(self, error: UserError) -> None:
        """Something is wrong."""
        self._found.append(error)

    @contextmanager
    def part(self) -> Iterator[None]:
        """A place in which something may be wrong: what follows is looked at all the same."""
        try:
            yield
        except UserError as error:
            self.take(error)

    def of(self, read: Callable[[], _Read], otherwise: _Read) -> _Read:
        """What is read; something else, where that is wrong."""
        try:
            return read()
        except UserError as error:
            self.take(error)
            return otherwise

    def check(self) -> None:
        """See that nothing was wrong.

        Raises:
            UserError: Something was: its own error; of several one with all their lines, which may
                pass if each of them may.
        """
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            lines = dict.fromkeys(line for error in self._found for line in error.lines)
            may_pass = all(error.may_pass for error in self._found)
            raise (TryAgainError if may_pass else UserError)(*lines)


def job_error(text: str, cause: OSError) -> JobError:
    """The error of a job that the system refuses something: one that may pass, unless it stays.

    Args:
        text: The message.
        cause: What the system says. A port that another process has, a full disk or a network that
            is down may pass; a name that does not exist or a missing right does not.
    """
    is_lasting = isinstance(cause, LASTING_KINDS) or cause.errno in LASTING_ERRORS
    return (JobError if is_lasting else TryAgainError)(text)


def first_line(error: BaseException) -> str:
    """What an error says first; its type's name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _without_traceback(text: str, kind: type[BaseException]) -> str:
    """The error's own words: torch raises a loader process's error again, with its traceback."""
    return text.rpartition(f"{kind.__name__}: ")[2].strip()
