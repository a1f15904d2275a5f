"""The file as a tree of YAML nodes that remember their lines: safe to read whatever it holds."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import yaml

from hetero_hvd.errors import ConfigError

MAX_FILE_BYTES = 2**20
"""Ten thousand nodes fit; a file by mistake (a data set, a log) is refused before it is parsed."""

MAX_DEPTH = 16


class _Loader(yaml.SafeLoader):
    """Composes nodes, constructs nothing, and refuses what can blow up or surprise."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            _refuse("anchors and aliases (& and *) are not supported; write it out", event)
        if re.search(r"[\ud800-\udfff]", getattr(event, "value", "")):
            _refuse("surrogates (\\ud800 to \\udfff) are no characters", event)
        if getattr(event, "tag", None) not in {None, "!"}:
            _refuse(f"tags ({event.tag!r}) are not supported; remove it", event)
        if self.depth >= MAX_DEPTH:
            _refuse(f"nested deeper than {MAX_DEPTH} levels", event)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _refuse(reason: str, event: Any) -> None:  # noqa: ANN401 - any event has a mark
    raise yaml.MarkedYAMLError(problem=reason, problem_mark=event.start_mark)


def read_content(path: Path) -> bytes:
    """The bytes of a regular file.

    Raises:
        ConfigError: It cannot be read, is no file, or is too large.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise ConfigError([f"{path}: is {what}, must be a YAML file"])
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError([f"{path}: no such file"]) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError([f"{path}: larger than {MAX_FILE_BYTES} bytes, is it the right file?"])
    return content


def compose(content: bytes, path: Path) -> yaml.Node | None:
    """The tree of a file's one document; None if the file is empty.

    Raises:
        ConfigError: It is not UTF-8, or not YAML, or uses what is not supported.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: not UTF-8 text"]) from error
    return _tree(text, path)


def _tree(text: str, path: Path) -> yaml.Node | None:
    line = 1
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            line = loader.line + 1
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"control character {chr(error.character)!r} is not allowed"
        raise ConfigError([f"{path}:{line}: {reason}"]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        hint = "; indent with spaces, not tabs" if "\\t" in (error.problem or "") else ""
        raise ConfigError([f"{path}:{line}: {error.problem}{hint}"]) from error
    except (ValueError, OverflowError) as error:  # numbers in escapes and directives
        raise ConfigError([f"{path}:{line}: not YAML: {error}"]) from error
