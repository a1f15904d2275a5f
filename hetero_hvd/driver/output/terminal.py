"""A terminal, or what stands for one: lines by meaning, and below them one that is written anew."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

from hetero_hvd.core.printable import printable
from hetero_hvd.core.view.meanings import Meaning, Words, fitted

COLOURS: Mapping[Meaning, str] = {"step": "2", "good": "32", "warning": "33", "problem": "31"}
"""Parameters of ANSI's SGR; all others are as the terminal shows text."""

QUIET: tuple[Meaning, ...] = ("progress", "step", "good")
"""What nobody has to read."""

ERASE = "\r\x1b[J"
BESIDE = "  "
NO_SIZE = 80
"""Columns of what does not tell."""


@dataclass(frozen=True, kw_only=True)
class TerminalStyle:
    """How a run is shown.

    Attributes:
        is_live: Whether the last line is written anew; else all lines stay.
        has_colour: Whether colours tell what lines mean.
        verbosity: `quiet`: the script's own output and what goes wrong; `verbose`: also what else
            is logged, and on a live terminal the lines about steps.
    """

    is_live: bool = False
    has_colour: bool = False
    verbosity: Literal["quiet", "normal", "verbose"] = "normal"

    @classmethod
    def of(
        cls,
        environment: Mapping[str, str],
        *,
        is_terminal: bool,
        colour: Literal["auto", "always", "never"] = "auto",
        verbosity: Literal["quiet", "normal", "verbose"] = "normal",
    ) -> TerminalStyle:
        """What suits a terminal.

        Args:
            environment: TERM says what it can do, NO_COLOR (no-color.org) what its user wants.
            is_terminal: Whether the output goes to one.
            colour: What the user has asked for; counts more than the environment.
            verbosity: See above.
        """
        is_able = is_terminal and environment.get("TERM", "dumb") != "dumb"
        wants = is_able and not environment.get("NO_COLOR")
        return cls(
            is_live=is_able and verbosity != "quiet",
            has_colour=wants if colour == "auto" else colour == "always",
            verbosity=verbosity,
        )

    def shows(self, meaning: Meaning) -> bool:
        """Whether lines of this meaning are shown."""
        if self.verbosity == "quiet":
            return meaning not in QUIET
        return meaning != "step" or not self.is_live or self.verbosity == "verbose"


class Terminal:
    """Writes to a stream; for one thread.

    Args:
        stream: Where to.
        style: How.
    """

    def __init__(self, stream: TextIO, style: TerminalStyle) -> None:
        self._stream = stream
        self._style = style
        self._num_drawn = 0
        self._drawn = ""

    def line(self, text: str, meaning: Meaning = "note") -> None:
        """Write a line that stays, above the one that does not."""
        self.erase()
        self._stream.write(f"{self._coloured(text, meaning)}\n")

    def status(self, pieces: list[Words]) -> None:
        """Write the line that does not stay; without pieces there is none."""
        if not self._style.is_live:
            return
        room = max(1, self._num_columns() - 1)  # a full line would begin the next one
        shown = [self._able(piece) for piece in fitted(pieces, room, between=BESIDE)]
        drawn = BESIDE.join(self._coloured(piece.text, piece.meaning) for piece in shown)
        if drawn == self._drawn and self._num_drawn <= room:
            return
        self.erase()
        self._stream.write(drawn)
        self._drawn = drawn
        self._num_drawn = len(BESIDE.join(piece.text for piece in shown))

    def erase(self) -> None:
        """Take the line away that does not stay.

        Some terminals wrap it when they become narrower, others cut it: nothing above is touched,
        so that no other line is ever lost.
        """
        if self._num_drawn:
            self._stream.write(ERASE)
        self._num_drawn = 0
        self._drawn = ""

    def flush(self) -> None:
        """Have it seen."""
        self._stream.flush()

    def _able(self, piece: Words) -> Words:
        """A piece in letters that the stream has."""
        try:
            piece.text.encode(self._stream.encoding or "utf-8")
        except UnicodeEncodeError:
            plain = piece.text.translate(str.maketrans("█▓▒░…", "#=-.~"))
            return piece._replace(text=plain.encode("ascii", "replace").decode())
        return piece

    def _coloured(self, text: str, meaning: Meaning) -> str:
        colour = COLOURS.get(meaning)
        if colour is None or not self._style.has_colour:
            return text
        return f"\x1b[{colour}m{text}\x1b[0m"

    def _num_columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or NO_SIZE
        except (OSError, ValueError, AttributeError):
            return NO_SIZE


def plain(pieces: list[Words]) -> list[Words]:
    """The pieces with names that cannot make a terminal do anything."""
    return [piece._replace(text=printable(piece.text)) for piece in pieces]
