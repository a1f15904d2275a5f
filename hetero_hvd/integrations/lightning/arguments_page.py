"""The page of all arguments, docs/reference/lightning.md; `scripts/pages` writes it."""

from __future__ import annotations

from hetero_hvd.integrations.lightning.trainer_arguments import RULES, names
from hetero_hvd.integrations.packages import LIGHTNING
from hetero_hvd.integrations.rules import page

_INTRODUCTION = f"""\
# Arguments of Lightning's Trainer

Generated from the code by `scripts/pages`; a test compares the two, and another one walks the
signature of `Trainer`. Tested with {LIGHTNING}; another version is warned of.
How to use it: [the guide](../guide/lightning.md)."""


def reference() -> str:
    """The page, in Markdown."""
    return page(_INTRODUCTION, "Lightning", RULES, names())
