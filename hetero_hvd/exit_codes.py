"""What an exit code says, of the driver, a supervisor, a worker or the way to a node.

Codes of a script's own stay what they are. Those above 64 are of sysexits.h where it has one that
fits, and 128 and a number are the shell's for a process that a signal has ended.
"""

import signal

EXIT_FAILED = 1
"""An error of ours; also instead of 0 where a launcher reports that of a node that has failed."""

EXIT_USER_ERROR = 2
"""The input is wrong, which one line says; trying again is of no use."""

EXIT_REFUSED = 64
"""The same of a worker that has not trained yet (EX_USAGE); its output has the line."""

EXIT_NO_PLACE = 69
"""Others have all slots of an agent's node, or the device of this one (EX_UNAVAILABLE)."""

EXIT_OUT_OF_MEMORY = 71
"""The kernel has ended a worker for its memory, as its supervisor saw (EX_OSERR)."""

EXIT_NOT_KEPT = 73
"""A job is done, but the last checkpoint that it was to keep is not there (EX_CANTCREAT)."""

EXIT_CUT_OFF = 75
"""A worker could not reach the driver any more, and may be started again (EX_TEMPFAIL)."""

EXIT_TRY_AGAIN = 75
"""The same code of a job, which cannot start or go on now, though its input may be right: too few
nodes are there, say. The same command may succeed later."""

EXIT_UNFIT = 78
"""A worker's machine is not what the job needs, which others may be (EX_CONFIG), or cannot read its
data; its output has the line."""

EXIT_HUNG = 124
"""A worker's own watchdog has ended it, as `timeout` of coreutils does."""

EXIT_NOT_STARTED = 127
"""A process could not be started, as the shell has it."""

SIGNALLED = 128
"""Larger ones are of processes that a signal has ended: this and its number."""

EXITS_BY_PEOPLE = tuple(
    SIGNALLED + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
)
"""Of a run that somebody has stopped, which is no failure."""

EXIT_KILLED = 137
"""SIGKILL."""

EXIT_TERMINATED = 143
"""SIGTERM: somebody has asked it to go."""

EXIT_NO_CONNECTION = 255
"""There is no way to the node, or it broke; as ssh has it."""


def exit_of_user_error(*, may_pass: bool) -> int:
    """Of a job or script that a `UserError` ends; `may_pass` is the error's."""
    return EXIT_TRY_AGAIN if may_pass else EXIT_USER_ERROR


def as_exit_code(returncode: int) -> int:
    """What a shell tells of a process; Python tells of signals by negative numbers."""
    return returncode if returncode >= 0 else SIGNALLED - returncode


def exit_in_words(code: int) -> str:
    """An exit code for people."""
    if code > SIGNALLED:
        try:
            return f"was ended by {signal.Signals(code - SIGNALLED).name}"
        except ValueError:
            pass
    return f"exited with code {code}"
