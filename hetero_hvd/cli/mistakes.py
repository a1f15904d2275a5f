"""What was probably meant by words that no command understands."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence

OF_OTHER_LAUNCHERS = {
    **dict.fromkeys(("-np", "-n", "--num-proc", "--nproc-per-node", "--nproc_per_node"), "slots"),
    **dict.fromkeys(
        ("-H", "--hosts", "--hostfile", "--nnodes", "--host-discovery-script"), "nodes"
    ),
}
"""Habits from horovodrun, mpirun and torchrun to what is written in nodes.yaml instead."""


_WORDS_OF_ARGPARSE = (
    (r"the following arguments are required: (.+)", r"{0} is missing"),
    (r"argument (.+): expected (?:one|at least one) argument", "argument {0}: needs a value"),
    (
        r"argument (.+): ignored explicit argument '(.*)'",
        "argument {0}: found {1!r}, takes no value",
    ),
    (r"argument (.+): invalid int value: '(.*)'", "argument {0}: found {1!r}, must be an integer"),
    (r"argument (.+): invalid float value: '(.*)'", "argument {0}: found {1!r}, must be a number"),
)
"""What argparse says of wrong words, whatever its version, to what is said instead."""

_NO_CHOICE = re.compile(r"argument (.+): invalid choice: '(.*)' \(choose from (.+)\)", re.DOTALL)


def in_our_words(message: str) -> str:
    """What argparse says, as all other wrong input is told: what was found, and what is allowed."""
    for pattern, words in _WORDS_OF_ARGPARSE:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            return words.format(*found.groups())
    if found := _NO_CHOICE.fullmatch(message):
        flag, word, listed = found.groups()
        allowed = [name.strip("'") for name in listed.split(", ")]
        return (
            f"argument {flag}: found {word!r}, must be one of {', '.join(allowed)}"
            f"{did_you_mean(word, allowed)}"
        )
    return message


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question about the nearest of the known words; empty if none is near."""
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def about_command(word: str, known: Sequence[str]) -> str:
    """What to say of a first word that is no command."""
    if word.endswith(".py"):
        return f"{word!r} is no command; did you mean hetero-hvd run {word}?"
    question = did_you_mean(word, known) or "; hetero-hvd --help lists them"
    return f"{word!r} is no command{question}"


def about_words(
    unknown: Sequence[str], *, command: str, known: Iterable[str], takes_script: bool
) -> str:
    """What to say of words that are no options of a command.

    Args:
        unknown: At least one.
        command: Its name.
        known: Its options.
        takes_script: Whether a script may follow after `--`.
    """
    first = unknown[0]
    name = first.partition("=")[0]
    if name.startswith("-"):
        if takes_script and name in OF_OTHER_LAUNCHERS:
            what = OF_OTHER_LAUNCHERS[name]
            return f"unknown option {name}: the {what} of nodes.yaml say where workers run"
        question = did_you_mean(name, known)
        return f"unknown option {name}{question or f'; see hetero-hvd {command} --help'}"
    if takes_script:
        script = " ".join(unknown)
        return f"{first!r}: put -- before the script: hetero-hvd {command} [options] -- {script}"
    return f"{first!r} is too much; see hetero-hvd {command} --help"


def in_order(command: str, words: Sequence[str], unknown: Sequence[str]) -> str | None:
    """The same with a script's options behind the script, where they stand before it.

    Args:
        command: Its name.
        words: Behind it.
        unknown: Those of them that are no options of the command's, at least one.

    Returns:
        The whole line; None: no script follows, or it is the option of another launcher.
    """
    if unknown[0].partition("=")[0] in OF_OTHER_LAUNCHERS:
        return None
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    if script is None or unknown[0] not in words[:script]:
        return None
    first = words.index(unknown[0])
    own = [word for word in words[first:script] if word != "--"]
    mark = ["--"] if "--" in words[:script] else []
    right = [*words[:first], *mark, words[script], *own, *words[script + 1 :]]
    return shlex.join(["hetero-hvd", *command.split(), *right])


def about_order(option: str, meant: str, *, known: Iterable[str]) -> str:
    """What to say of an option before the script that may be the script's, or a mistyped one."""
    name = option.partition("=")[0]
    question = did_you_mean(name, known)
    return f"unknown option {name}{question}; an option of the script stands behind it: {meant}"
