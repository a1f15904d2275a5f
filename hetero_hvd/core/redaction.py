"""Secrets in what a user has typed or a program has said, replaced before it is recorded or shown.

They are found by the name before a value, by the form of a token, in URLs and headers; and where
the value itself is known, as that of a variable is, wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from hetero_hvd.messages import (
    Crashed,
    Event,
    OutOfMemory,
    RunEnded,
    RunStarted,
    TraceWritten,
    WorkerExited,
    WorkerQuarantined,
)

HIDDEN = "(hidden)"
SHORTEST_VALUE = 6
"""Characters of a variable's value that is looked for everywhere; shorter ones are in any text."""

_WORDS = (
    r"pass(?:word|wd|phrase|code)?s?|(?:pg|mysql)?pwd|pgpassword|secrets?|token|credentials?"
    r"|auth(?:orization)?|bearer|jwt|cookie|sig(?:nature)?"
    r"|(?:api|access|private|secret|account|signing|encryption|license|ssh)[-_.]?keys?"
)
_NAME = re.compile(rf"(?:^|[-_.])(?:{_WORDS})(?:$|[-_.])", re.IGNORECASE)
_NO_SECRET = re.compile(r"[-_.](?:file|path|dir)$", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ARGUMENT = re.compile(r"(?P<name>[-+\w.]+)(?P<mark>[=:])(?P<value>.+)", re.DOTALL)
_ASSIGNED = re.compile(
    r"(?<![-\w.])(?P<name>[A-Za-z_][-\w.]*)(?P<mark>=[\"']?|[\"']\s*:\s*[\"']?)(?=[^\s\"',;&}\])])"
)
"""Within a text, up to the value: `NAME=value`, `?name=value&`, `"name": "value"`."""

_VALUE = re.compile(r"[^\s\"',;&}\])]+")
_OPTION = re.compile(r"(?<!\S)(?P<name>--?[A-Za-z][-\w.]*)(?P<mark>\s+)(?P<value>(?!--)\S+)")
_HEADER = re.compile(
    r"(?P<name>(?:proxy-)?authorization|(?:set-)?cookie|x-[-\w]{0,40}(?:key|token|secret))(?P<mark>:\s*)"
    r"(?P<value>(?:(?:bearer|basic|token|digest)\s+)?[^\s\"']+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?P<name>bearer)(?P<mark>\s+)(?P<value>[-\w.~+/=]{8,})", re.IGNORECASE)
_URL_PASSWORD = re.compile(
    r"(?P<scheme>://|\b(?:https?|s?ftps?|ssh|s3a?|gcs?|gs|abfss?|rediss?|postgres(?:ql)?|mysql):/?)"
    r"(?P<user>[^\s/:@\"']{0,200}):[^\s\"']{1,300}@",
    re.IGNORECASE,
)
"""Also where a slash is missing after a known scheme, and where the password has a slash in it."""

_URL_TOKEN = re.compile(r"(?<=://)(?=[^\s/:@]*\d)[^\s/:@]{16,}@")
_KNOWN_FORMS = re.compile(
    r"\b(?:hf_\w{20,}|gh[opsu]_\w{20,}|github_pat_\w{20,}|glpat-[-\w]{16,}|npm_\w{20,}"
    r"|pypi-[-\w]{20,}|dckr_pat_[-\w]{16,}|sk-[-\w]{20,}|A[KS]IA[0-9A-Z]{16}|AIza[-\w]{30,}"
    r"|xox[abprs]-[-\w]{10,}|eyJ[-\w]{10,2000}\.[-\w]{10,4000}\.[-\w]*)"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
"""Of tokens whose makers have given them a form."""

_FOLDERS = {"PWD", "OLDPWD"}
"""A shell's variables that look like passwords, and hold the folder in which it works."""

_SAID = (Crashed, OutOfMemory, RunEnded, RunStarted, TraceWritten, WorkerExited, WorkerQuarantined)
"""Events with text that a user has typed, or a program of his may have said."""

_Told = TypeVar("_Told")


def is_secret_name(name: str) -> bool:
    """Whether a setting, variable or option of this name holds a secret, by its words."""
    words = _CAMEL.sub("_", name)
    return _NAME.search(words) is not None and _NO_SECRET.search(words) is None


def redacted(text: str) -> str:
    """One argument, value or text of several lines; what looks like a secret in it is hidden.

    Found are passwords and tokens in URLs and headers, tokens of well-known forms, and values of
    `name=value`, `"name": "value"` or `--name value` where the name says so.
    """
    found = _ARGUMENT.fullmatch(text)
    if found and is_secret_name(found["name"].strip("-+")):
        return f"{found['name']}{found['mark']}{HIDDEN}"
    text = _URL_PASSWORD.sub(rf"\g<scheme>\g<user>:{HIDDEN}@", text)
    text = _URL_TOKEN.sub(f"{HIDDEN}@", text)
    text = _KNOWN_FORMS.sub(HIDDEN, text)
    text = _HEADER.sub(_hidden, text)
    text = _BEARER.sub(_hidden, text)
    return _OPTION.sub(_hidden_by_name, _without_assigned(text))


def _without_assigned(text: str) -> str:
    """Values after names of secrets are hidden; other values are searched in turn, as URLs are."""
    kept: list[str] = []
    at = 0
    while (found := _ASSIGNED.search(text, at)) is not None:
        kept.append(text[at : found.end()])
        at = found.end()
        if is_secret_name(found["name"]) and (value := _VALUE.match(text, at)):
            kept.append(HIDDEN)
            at = value.end()
    return "".join((*kept, text[at:]))


def _hidden(found: re.Match[str]) -> str:
    return f"{found['name']}{found['mark']}{HIDDEN}"


def _hidden_by_name(found: re.Match[str]) -> str:
    return _hidden(found) if is_secret_name(found["name"].strip("-")) else found[0]


def encodable(text: str) -> str:
    r"""A text as it is, but for what no encoding takes: a file's name may hold it, as `\udcff`."""
    return text.encode(errors="backslashreplace").decode()


def redacted_value(name: str, value: str) -> str:
    """A value by its name: hidden where that says so, else where it looks like a secret."""
    return HIDDEN if is_secret_name(name) else redacted(value)


def redacted_command(words: Iterable[str]) -> Iterator[str]:
    """A command's words; after an option such as `--token` the next word is hidden, too."""
    is_next = False
    for word in words:
        yield HIDDEN if is_next and not word.startswith("--") else redacted(word)
        is_next = word.startswith("-") and "=" not in word and is_secret_name(word.strip("-"))


class Redaction:
    """Hides what is secret in events, and the values of variables that are known to be."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def hide(self, environment: Mapping[str, str]) -> None:
        """From now on, also the values of those variables whose names say that they are secret."""
        self._values |= {
            value
            for name, value in environment.items()
            if is_secret_name(name) and name not in _FOLDERS and len(value) >= SHORTEST_VALUE
        }

    def text(self, text: str) -> str:
        """A text without them, which any file takes."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, HIDDEN)
        return redacted(encodable(text))

    def event(self, event: Event) -> Event:
        """An event without them; those that hold nothing but our own words are as they were."""
        if not isinstance(event, _SAID):
            return event
        said = (name for name in event.__struct_fields__ if name != "run_id")  # that is ours
        changed = {name: self._part(getattr(event, name)) for name in said}
        return msgspec.structs.replace(event, **changed)

    def _part(self, part: _Told) -> _Told | Any:  # noqa: ANN401 - of the same kind
        if isinstance(part, str):
            return self.text(part)
        if isinstance(part, tuple) and all(isinstance(word, str) for word in part):
            return tuple(redacted_command(map(self.text, part)))
        if isinstance(part, dict):
            return {
                name: redacted_value(name, self.text(value)) if isinstance(value, str) else value
                for name, value in part.items()
            }
        return part
