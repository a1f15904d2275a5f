"""Text from scripts, workers and files, before it reaches a terminal.

What a script prints or gives a name to may hold whatever a terminal obeys: it could clear the
screen, hide what was said, or pretend to be lines of ours.
"""

from __future__ import annotations

import re

RESET = "\x1b[0m"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OBEYED = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"  # control characters but the tab
    "\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, changes of direction
    "\ud800-\udfff]"  # halves of characters, which no encoding takes
)


def printable(text: str, *, keeps_colours: bool = False) -> str:
    r"""One line that shows what a terminal would obey: `\x1b`, `\n`.

    Args:
        text: From anywhere.
        keeps_colours: Leave the sequences that colour text; they end with it.
    """
    if not keeps_colours:
        return _OBEYED.sub(_shown, text)
    colours = _COLOUR.findall(text)
    plain = map(printable, _COLOUR.split(text))
    line = "".join(part + colour for part, colour in zip(plain, [*colours, ""], strict=True))
    return line + RESET if colours else line


def printable_json(text: str) -> str:
    r"""JSON in which what a terminal would obey is escaped, as `\u009b`: it says the same."""
    return "\n".join(
        _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in text.split("\n")
    )


def _shown(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
