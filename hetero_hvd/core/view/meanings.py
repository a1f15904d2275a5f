"""What a line says to people, so that a terminal can show it by meaning and leave some out."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

Meaning = Literal["output", "note", "progress", "step", "good", "warning", "problem"]
"""`output`: of the user's script; `note`: of ours, and nobody should miss it; `progress`: how it
goes on; `step`: the same again and again; `good`, `warning` and `problem`: what they say."""


class Say(Protocol):
    """Shows people a line."""

    def __call__(self, line: str, meaning: Meaning = "note", /) -> None:
        """Called from any thread; does not block."""


class Words(NamedTuple):
    """A piece of a line.

    Attributes:
        text: On one line.
        meaning: For its colour.
        rank: The larger, the sooner it is left out where there is no room; 0: never.
    """

    text: str
    meaning: Meaning = "progress"
    rank: int = 0


def fitted(pieces: list[Words], num_columns: int, *, between: str = "  ") -> list[Words]:
    """The most important pieces for which there is room, in their order.

    Args:
        pieces: In the order in which they are shown.
        num_columns: At least 1.
        between: What stands between two of them.

    Returns:
        Pieces that fit together with what is between them; a single one that does not is cut.
    """
    kept = list(pieces)
    while len(kept) > 1 and _width(kept, between) > num_columns:
        kept.remove(max(reversed(kept), key=lambda piece: piece.rank))
    if len(kept) == 1 and len(kept[0].text) > num_columns:
        return [kept[0]._replace(text=f"{kept[0].text[: num_columns - 1]}…")]
    return kept


def _width(pieces: list[Words], between: str) -> int:
    return sum(len(piece.text) for piece in pieces) + len(between) * (len(pieces) - 1)
