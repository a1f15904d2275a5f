"""Secrets in what a user has typed, replaced before it is recorded or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

HIDDEN = "(hidden)"

_WORDS = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|(?:api|access|private)[-_]?key|credentials?"
    r"|auth(?:orization)?"
)
_NAME = re.compile(rf"(?:^|[-_.])(?:{_WORDS})(?:$|[-_.])", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?P<name>[-\w.]+)(?P<mark>[=:])(?P<value>.+)", re.DOTALL)
_URL_PASSWORD = re.compile(r"(?<=://)(?P<user>[^\s/:@]*):[^\s/@]+@")
_KNOWN_FORMS = re.compile(
    r"\b(?:hf_\w{20,}|gh[opsu]_\w{20,}|github_pat_\w{20,}|sk-[-\w]{20,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[-\w]{10,}|eyJ[-\w]{10,}\.[-\w]{10,}\.[-\w]*)"
)
"""Of tokens whose makers have given them a form."""


def is_secret_name(name: str) -> bool:
    """Whether a setting, variable or option of this name holds a secret, by its words."""
    return _NAME.search(name) is not None


def redacted(text: str) -> str:
    """One argument or value; what looks like a secret in it is hidden.

    Found are passwords in URLs, tokens of well-known forms, and values of `name=value` where the
    name says so.
    """
    found = _ASSIGNED.fullmatch(text)
    if found and is_secret_name(found["name"]):
        return f"{found['name']}{found['mark']}{HIDDEN}"
    text = _URL_PASSWORD.sub(rf"\g<user>:{HIDDEN}@", text)
    return _KNOWN_FORMS.sub(HIDDEN, text)


def redacted_value(name: str, value: str) -> str:
    """A value by its name: hidden where that says so, else where it looks like a secret."""
    return HIDDEN if is_secret_name(name) else redacted(value)


def redacted_command(words: Iterable[str]) -> Iterator[str]:
    """A command's words; after an option such as `--token` the next word is hidden, too."""
    is_next = False
    for word in words:
        yield HIDDEN if is_next and not word.startswith("-") else redacted(word)
        is_next = word.startswith("-") and "=" not in word and is_secret_name(word)
