"""YAML that we write means the same to whoever reads it."""

import pytest
import yaml

from hetero_hvd.config.yaml_document import yaml_text

AMBIGUOUS = (
    *("y", "N", "yes", "No", "on", "OFF", "true", "False", "null", "~", ""),
    *("1", "-1", "1e3", "1_000", "0o14", "014", "0x1F", "1.5", ".inf", "1:30", "2026-01-01"),
    *("a: b", "a #b", "- a", "*a", "&a", "!a", "@a", "`a", "%a", "[a", "{a", " a", "a ", "'", '"'),
)


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_a_text_that_a_reader_could_take_for_something_else_is_quoted(text):
    """Go's readers know numbers and words that Python's does not."""
    written = yaml_text({"a": [text]})
    assert written == f"a:\n- {yaml_text(text).removesuffix('...').strip()}\n"
    assert written.partition("- ")[2][0] == '"'
    assert yaml.safe_load(written) == {"a": [text]}


def test_what_is_there_twice_is_written_twice():
    """No anchors, which our own reader refuses, and a document after each ---."""
    same = {"script": "if a:\n  b\n", "words": ["run", "train.py", "ä\t"]}
    written = yaml_text([same, same], None)
    assert "&" not in written
    assert list(yaml.safe_load_all(written)) == [[same, same], None]


LINES = [
    "a\nb",
    "a\n",
    "\n",
    " a\n",
    "a\r\nb",
    "a\rb\n",
    "\ta\n",
    "a\x07\n",
    "\ufeffa\n",
    "---\n",
    "#\n",
]
BREAKS = ["\x85", "\u2028", "\u2029"]
LINES += [
    text
    for mark in BREAKS
    for text in (mark, f"a{mark}b", f"a{mark}b\nc", f"a\n{mark}", f"{mark}\n")
]


@pytest.mark.parametrize("text", LINES)
def test_lines_stay_as_they_are(text):
    """What is a line break to some readers only is never written as itself."""
    written = yaml_text({"a": text})
    assert yaml.safe_load(written) == {"a": text}
    assert not set("\x85\u2028\u2029\ufeff\r").intersection(written)
