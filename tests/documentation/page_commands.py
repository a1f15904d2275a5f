"""Every command that README.md and the pages of docs show, with its place.

A command is a line of a block in a shell's language, a line of any block or of an indented one that
begins with a prompt or with a program of `PROGRAMS`, and inline code that does so. What follows
`&&`, `;` or `|` is a command of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kit.checkout import CHECKOUT

HISTORY = "changelog.md"
"""Tells of former names."""

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]

PROGRAMS = {
    "apt-get", "brew", "buildah", "conda", "cp", "curl", "docker", "export", "git", "helm",
    "hetero-hvd", "horovodrun", "ip", "kill", "kubectl", "lint-imports", "mkdir", "mpirun", "mypy",
    "pip", "podman", "pre-commit", "pytest", "python", "python3", "ray", "rsync", "ruff", "salloc",
    "sbatch", "scancel", "scontrol", "scp", "sh", "squeue", "srun", "ssh", "ssh-copy-id",
    "ssh-keygen", "streamlit", "sudo", "sysctl", "systemctl", "tail", "tensorboard", "torchrun",
    "umask", "uv", "wg", "wget",
}  # fmt: skip
"""First words by which a line of a block, or inline code, is taken for a command."""

SHELLS = {"bash", "sh", "shell", "zsh"}
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^|(?<=\n\n))(?: {4}[^\n]*\n)+", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PROMPT = re.compile(r"\s*(?:\w+)?\$ ")
CONTINUED = re.compile(r"\\\n\s*")
PLACES = re.compile(r"\[[:C][^]]*\]|\.\.\.|…")
"""What stands for further words of the reader's own."""


@dataclass(frozen=True)
class Command:
    """One command of one page.

    Attributes:
        place: File and line, from the top of the checkout.
        words: As a shell would split them; without variables before it and redirections.
        is_shown: Whether it stands in a block, to be typed; else it is in a sentence.
    """

    place: str
    words: tuple[str, ...]
    is_shown: bool

    @property
    def page(self) -> str:
        """The file."""
        return self.place.rpartition(":")[0]

    @property
    def text(self) -> str:
        """In one line."""
        return " ".join(self.words)

    @property
    def is_a_name(self) -> bool:
        """Whether a sentence names the program, or the command of ours, and no more."""
        rest = self.words[1:] if self.words[0] == "hetero-hvd" else self.words
        return not self.is_shown and len(rest) <= 1


def commands_of(page: Path) -> Iterator[Command]:
    """All commands of a page, in its order but those in sentences, which come last."""
    text = page.read_text()
    name = page.relative_to(CHECKOUT) if page.is_relative_to(CHECKOUT) else page.name
    blocks = list(BLOCK.finditer(text))
    rest = _without(text, blocks)
    shown = [
        (at, line, block[2]) for block in blocks for at, line in _lines(block.start(3), block[3])
    ]
    for block in INDENTED.finditer(rest):
        shown += [(at, line, "") for at, line in _lines(block.start(), block[0])]
    found = [(at, _shown(line, is_shell=language in SHELLS), True) for at, line, language in shown]
    found += [(inline.start(), _said(inline[1]), False) for inline in INLINE.finditer(rest)]
    for at, code, is_shown in found:
        for words in _simple_commands(code):
            yield Command(f"{name}:{text.count(chr(10), 0, at) + 1}", words, is_shown)


def _lines(start: int, text: str) -> Iterator[tuple[int, str]]:
    """Where each line begins, and what it says with the lines that continue it."""
    unclosed = ""
    at = start
    for line in CONTINUED.sub(lambda match: " " * len(match[0]), text).splitlines(keepends=True):
        unclosed += line
        if unclosed.count("'") % 2 == 0 or not unclosed.startswith(("python -c", "curl ")):
            yield at, unclosed.strip("\n")
            at += len(unclosed)
            unclosed = ""


def _without(text: str, blocks: Sequence[re.Match[str]]) -> str:
    """What stands outside of blocks; each character has its place."""
    rest = list(text)
    for block in blocks:
        begin, end = block.span()
        rest[begin:end] = re.sub(r"[^\n]", " ", block[0])
    return "".join(rest)


def _shown(line: str, *, is_shell: bool) -> str:
    """The command that a line of a block shows, if any."""
    prompt = PROMPT.match(line)
    code = line[prompt.end() :] if prompt else line.strip()
    if code.startswith("#"):
        return ""
    return code if prompt or is_shell or _program(code) is not None else ""


def _said(inline: str) -> str:
    """The command that inline code is, if any."""
    code = PROMPT.sub("", inline.replace("\n", " "))
    return "" if _program(code) is None else code


def _program(code: str) -> str | None:
    """The program that a line begins with, if it is one that is known."""
    words = [word for word in code.split() if not re.match(r"[A-Z_]+=", word)]
    first = words[0].lstrip("(") if words else ""
    return first if first in PROGRAMS or re.match(r"\.?/?(scripts|\.ci)/\w", first) else None


def _simple_commands(code: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line, each as its words."""
    lexer = shlex.shlex(PLACES.sub("", code), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for word in [*lexer, ";"]:
        if set(word) <= set("|;&()"):
            if words and not words[0].startswith("-"):
                yield tuple(words)
            words = []
        elif set(word) <= set("<>&|"):
            is_target = True
        elif is_target:
            is_target = False
        elif words or not re.match(r"[A-Z_]+=", word):
            words.append(word)
