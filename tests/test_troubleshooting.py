"""What a page quotes of the messages is what the code says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/operations/troubleshooting.md"
QUOTES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
HOLE, END = "\0", "\1"
"""What a message has of its case; where the next one begins."""


def text_of(node):
    """A string as it is printed; None: it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sdgr]|\{\w*\}", HOLE, node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [
            HOLE if isinstance(each, ast.FormattedValue) else each.value for each in node.values
        ]
        return "".join(parts)
    return None


@cache
def messages():
    """All strings of the code, one behind the other."""
    trees = (ast.parse(path.read_text()) for path in (ROOT / "hetero_hvd").rglob("*.py"))
    found = (text_of(node) for tree in trees for node in ast.walk(tree))
    return END.join(text for text in found if text)


@pytest.mark.parametrize("quote", QUOTES)
def test_what_is_quoted_is_said(quote):
    """Each piece between the holes stands in one message, in this order."""
    pieces = [piece for piece in quote.split("...") if piece.strip()]
    assert re.search(f"[^{END}]*".join(map(re.escape, pieces)), messages())


def test_each_table_is_read():
    """Every row of the page is a quote, but the heads."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert len(QUOTES) == len([row for row in rows if not row.startswith(("| seen", "| ---"))]) > 25
