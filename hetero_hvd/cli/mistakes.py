"""What was probably meant by words that no command understands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

OF_OTHER_LAUNCHERS = {
    **dict.fromkeys(("-np", "-n", "--num-proc", "--nproc-per-node", "--nproc_per_node"), "slots"),
    **dict.fromkeys(
        ("-H", "--hosts", "--hostfile", "--nnodes", "--host-discovery-script"), "nodes"
    ),
}
"""Habits from horovodrun, mpirun and torchrun to what is written in nodes.yaml instead."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question about the nearest of the known words; empty if none is near."""
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def about_command(word: str, known: Sequence[str]) -> str:
    """What to say of a first word that is no command."""
    if word.endswith(".py"):
        return f"{word!r} is no command; did you mean hetero-hvd run -- {word}?"
    question = did_you_mean(word, known) or f"; there are {', '.join(known)}"
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
