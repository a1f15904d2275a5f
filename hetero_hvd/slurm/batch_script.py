"""What a batch script, or a command line, says of its job, as sbatch and salloc read it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_NEXT_PART = ("hetjob", "packjob")
_FLAGS = """
bell contiguous exclusive get-user-env help hold ignore-pbs immediate kill-command nice no-bell
no-kill no-requeue no-shell overcommit oversubscribe parsable propagate quiet reboot requeue share
spread-job test-only usage use-min-nodes verbose version wait x11
"""
FLAGS = frozenset(_FLAGS.split())
"""Options of both whose next word is no value: they have none, or behind `=` only."""

LETTERS = "HhkOQsuVvW"
"""The same for options of a letter; behind one of `I` and `K` a value may follow in the word."""

_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)
_ARRAY = re.compile(r"(?:--array=|-a)(?P<tasks>[^%]+)(?:%(?P<most>\d{1,7}))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class JobArray:
    """The tasks of an array.

    Attributes:
        tasks: Their numbers.
        most: So many run at once; None: all.
    """

    tasks: frozenset[int]
    most: int | None

    def without(self, others: Iterable[int]) -> str:
        """The value of `--array` for the other tasks, with room for these at the same time.

        Args:
            others: Numbers of tasks that there are; not all of this array's.
        """
        there = self.tasks & set(others)
        numbers = ",".join(map(str, sorted(self.tasks - there)))
        return numbers if self.most is None else f"{numbers}%{max(self.most - len(there), 1)}"


def options_of(script: str) -> Iterator[str]:
    """The options in a batch script: of the first part, before any command."""
    for line in script.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return
        if match := _DIRECTIVE.match(line):
            words = _split(match[1])
            if words[:1] and words[0] in _NEXT_PART:
                return
            yield from words


def own_options(words: Iterable[str]) -> Iterator[str]:
    """The options at the begin of a command line, without values and without the user's command.

    Args:
        words: Behind the program's name.
    """
    found = iter(words)
    for word in found:
        if word in ("-", "--") or not word.startswith("-"):
            return
        yield word
        if _takes_next(word):
            next(found, None)


def _takes_next(word: str) -> bool:
    """Whether the value of an option is the next word; of a long option the begin is enough."""
    if word.startswith("--"):
        return "=" not in word and not any(name.startswith(word[2:]) for name in FLAGS)
    with_value = word[1:].lstrip(LETTERS)
    return len(with_value) == 1 and with_value not in "IK"


def array_of(script: str) -> JobArray | None:
    """The array that a batch script is submitted as; None: it is none that is understood."""
    found = [match for word in options_of(script) if (match := _ARRAY.fullmatch(word))]
    if not found:
        return None
    tasks = set[int]()
    for part in found[-1]["tasks"].split(","):
        match = _RANGE.fullmatch(part)
        if match is None or match[3] == "0":
            return None
        first = int(match[1])
        tasks.update(range(first, int(match[2] or first) + 1, int(match[3] or 1)))
    most = found[-1]["most"]
    return JobArray(tasks=frozenset(tasks), most=None if most is None else int(most))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an open quote
        return text.split()
