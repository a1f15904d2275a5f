"""What the numbers mean with which NVIDIA's driver reports errors (XID): whose fault it is.

After NVIDIA's catalogue of XIDs, and the list of errors of programs of its device plugin for
Kubernetes (internal/rm/health.go, `ignoredXids`), which leaves a GPU in use after these.
"""

from __future__ import annotations

OF_PROGRAMS = frozenset({8, 13, 31, 32, 43, 45, 68, 69, 109})
"""Caused by what a program does, or the end of a program after another error: the GPU is well."""

PASSING = {
    63: "a faulty row of its memory is replaced at the next reset",
    92: "many errors of single bits in its memory",
    94: "an error of its memory that hit one program only",
}
"""The GPU can go on: it comes back, unless it happens again."""

UNTIL_RESET = {
    46: "it has stopped",
    48: "an error of two bits in its memory",
    54: "its power cable",
    62: "its microcontroller has stopped",
    64: "a faulty row of its memory cannot be replaced",
    74: "an error of NVLink",
    79: "it has fallen off the bus",
    95: "an error of its memory that may hit all programs",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    140: "errors of its memory that could not be corrected",
}
"""Somebody has to reset, to mend or to replace it."""


def xid_in_words(number: int) -> str:
    """An error in a few words."""
    words = UNTIL_RESET.get(number) or PASSING.get(number) or "not known to be of its hardware"
    return f"XID {number} ({words})"
