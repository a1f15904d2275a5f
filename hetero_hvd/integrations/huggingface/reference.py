"""The page of all arguments, docs/reference/huggingface.md; `scripts/pages` writes it."""

from __future__ import annotations

from dataclasses import fields

from transformers import TrainingArguments

from hetero_hvd.integrations.huggingface.arguments import RULES
from hetero_hvd.integrations.packages import HUGGING_FACE
from hetero_hvd.integrations.rules import page

_INTRODUCTION = f"""\
# Arguments of Hugging Face's Trainer

Generated from the code by `scripts/pages`; a test compares the two, and another one walks the
fields of `TrainingArguments`. Tested with {HUGGING_FACE}; another version is warned of.
How to use it: [the guide](../guide/huggingface.md)."""


def reference() -> str:
    """The page, in Markdown."""
    names = [field.name for field in fields(TrainingArguments)]
    return page(_INTRODUCTION, "transformers", RULES, names)
