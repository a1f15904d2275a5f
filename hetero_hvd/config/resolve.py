"""From file, environment and flags to checked settings, or to the list of all problems."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from hetero_hvd.config import variables
from hetero_hvd.config.cluster import ClusterConfig
from hetero_hvd.config.job import JOB_SETTINGS, JobConfig
from hetero_hvd.config.setting import REMOVED, Setting, displayed, settings_of
from hetero_hvd.config.value_types import Kind, ListOf, Scalar, Section, TextMap
from hetero_hvd.config.yaml_document import (
    NULL,
    compose,
    is_nothing,
    layered,
    read_content,
    with_nodes,
)
from hetero_hvd.core.redaction import redacted
from hetero_hvd.errors import ConfigError

_READ_AS = {"bool": "true or false", "int": "a number", "float": "a number", "timestamp": "a date"}
_JOB = {f"job.{setting.name}": setting for setting in JOB_SETTINGS}
TOP_LEVEL = "the top level"
GRANTED = Path("the nodes that were granted")
"""What takes the place of a file in messages."""


class _BadSettingError(Exception):
    """A setting has no value: its problems are noted."""


def load_cluster(
    *paths: Path, environment: Mapping[str, str], flags: Mapping[str, object]
) -> ClusterConfig:
    """Read nodes.yaml; for the job's settings a flag beats the environment, which beats the file.

    Args:
        paths: The file, or several: each adds to, and changes, those before it; see `layered`.
        environment: Variables; one that looks like ours and is not known is a problem, an empty one
            is not given.
        flags: Job setting to value or text; None is not given.

    Raises:
        ConfigError: With all problems of all three, those of the files first and in their order.
    """
    files = [(path, read_content(path)) for path in paths]
    return parse_cluster(files, environment=environment, flags=flags)


def parse_cluster(
    files: Sequence[tuple[Path, bytes]],
    *,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    granted: bytes = b"",
    follows_lender: bool = False,
) -> ClusterConfig:
    """As `load_cluster`, for content that was read already.

    Args:
        files: Path and content of each, the strongest last.
        environment: See `load_cluster`.
        flags: See `load_cluster`.
        granted: YAML with the nodes that the job has, whatever the file lists; what that says of
            one of them counts. Empty: the file decides.
        follows_lender: Whether that may change, so that it may even be none.

    Raises:
        ConfigError: With all problems.
    """
    trees = [compose(content, path) for path, content in files]
    paths, root = [path for path, _ in files], layered(trees)
    if granted:
        paths.append(GRANTED)
        root = with_nodes(root, compose(granted, GRANTED))
    return _Reader(paths, environment, flags, follows_lender=follows_lender).cluster(root)


class _Place(NamedTuple):
    """Where something stands; the order of places is that of problems.

    Attributes:
        number: Of the file, 0-based; beyond them: the environment, then the flags.
        line: In it, from 1.
    """

    number: float
    line: float


_ELSEWHERE = _Place(math.inf, 0)
"""Of what no file says: behind them all."""


class _Reader:
    """Walks the tree along the declarations; notes problems instead of stopping at the first."""

    def __init__(
        self,
        paths: Sequence[Path],
        environment: Mapping[str, str],
        flags: Mapping[str, object],
        *,
        follows_lender: bool = False,
    ) -> None:
        self._paths = tuple(paths)
        self._numbers = {str(path): number for number, path in enumerate(paths)}
        self._environment = environment
        self._flags = flags
        self._of_all = {"follows_lender": follows_lender}
        self._problems: list[tuple[_Place, str]] = []
        self._places: dict[str, _Place] = {}
        self._sources: dict[str, str] = {}

    def cluster(self, root: yaml.Node | None) -> ClusterConfig:
        if root is None:
            raise ConfigError([f"{self._paths[-1]}: is empty; key 'nodes' is missing"])
        self._places[""] = self._place_of(root)._replace(line=1)
        with suppress(_BadSettingError):
            found: ClusterConfig = self._section(ClusterConfig, root, "")
        self._problems += [(_ELSEWHERE, text) for text in variables.problems(self._environment)]
        if self._problems:
            ordered = sorted(self._problems, key=lambda problem: problem[0])
            raise ConfigError([text for _, text in ordered])
        return dataclasses.replace(found, files=self._paths, sources=self._sources)

    def _place_of(self, node: yaml.Node) -> _Place:
        return _Place(self._numbers.get(node.start_mark.name, 0), node.start_mark.line + 1)

    def _in_words(self, place: _Place) -> str:
        path = self._paths[int(place.number)]
        return str(path) if path == GRANTED else f"{path}:{place.line:.0f}"

    def _note(self, at: str, complaint: str) -> None:
        """Note a problem of the setting `at`, with the place that its value came from."""
        source, order = self._sources.get(at), _ELSEWHERE
        if source == "environment":
            place = f"environment: {_JOB[at].variable}"
        elif source == "flag":
            place = f"flag: {_JOB[at].flag}"
        else:
            order = self._place(at)
            words = self._in_words(order)
            place = ": ".join(filter(None, ("" if words == str(GRANTED) else words, at)))
        self._problems.append((order, ": ".join(filter(None, (place, complaint)))))

    def _place(self, at: str) -> _Place:
        """Where a setting stands in the files; if it does not, where it would belong."""
        while at and at not in self._places:
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        return self._places[at]

    def _fail(self, at: str, complaint: str) -> NoReturn:
        self._note(at, complaint)
        raise _BadSettingError

    def _section(self, kind: type[Any], node: yaml.Node | None, at: str) -> Any:  # noqa: ANN401
        num_problems = len(self._problems)
        settings = list(settings_of(kind))
        entries = self._entries(node, at, [setting.name for setting in settings])
        values = {}
        for setting in settings:
            inner = f"{at}.{setting.name}" if at else setting.name
            for text, source in self._given(kind, setting, entries):
                self._sources[inner] = source
                try:
                    values[setting.name] = self._value(setting, text, inner)
                except _BadSettingError:
                    continue
        if len(self._problems) > num_problems:
            raise _BadSettingError
        if kind is ClusterConfig:
            values |= self._of_all
        try:
            return kind(**values)
        except ConfigError as error:
            for problem in error.problems:  # each is `setting: complaint`, see declare.check
                name, _, complaint = problem.partition(": ")
                self._note(".".join(filter(None, (at, name))), complaint)
            raise _BadSettingError from error

    def _given(
        self, section: type[Any], setting: Setting, entries: Mapping[str, yaml.Node]
    ) -> Iterator[tuple[yaml.Node | str | None, str]]:
        """What was given for a setting and where, the weakest first."""
        node = entries.get(setting.name)
        if node is None or is_nothing(node):
            yield None, "default"
        else:
            yield node, self._in_words(self._place_of(node))
        if section is JobConfig:
            if text := self._environment.get(setting.variable):
                yield text, "environment"
            if (flag := self._flags.get(setting.name)) is not None and flag != "":
                yield str(flag), "flag"

    def _value(self, setting: Setting, given: yaml.Node | str | None, at: str) -> Any:  # noqa: ANN401
        kind = setting.kind
        if isinstance(given, str):
            if isinstance(kind, ListOf) and isinstance(kind.item, Scalar):
                return tuple(self._scalar(kind.item, word, at) for word in given.split())
            assert isinstance(kind, Scalar)  # noqa: S101 - of job settings, which are such or lists
            return self._scalar(kind, given, at)
        if given is not None:
            self._places[at] = self._place_of(given)
            return self._node(kind, given, at)
        if setting.is_required:
            self._fail(at, f"is missing, must be {kind.allowed}")
        if isinstance(kind, Section) and setting.default is not None:
            return self._section(kind.of, None, at)
        return setting.default

    def _node(self, kind: Kind, node: yaml.Node, at: str) -> Any:  # noqa: ANN401
        if isinstance(kind, Section):
            return self._section(kind.of, node, at)
        if isinstance(kind, TextMap):
            return self._text_map(kind, node, at)
        if isinstance(kind, ListOf):
            return self._list(kind, node, at)
        if not isinstance(node, yaml.ScalarNode):
            self._fail(at, f"found {_what(node)}, must be {kind.allowed}")
        read_as = _READ_AS.get(node.tag.rpartition(":")[2]) if not kind.is_secret else None
        if kind.is_text and read_as:
            complaint = f"found {node.value}, which YAML reads as {read_as}"
            self._fail(at, f"{complaint}; quote it: '{node.value}'")
        return self._scalar(kind, node.value, at)

    def _scalar(self, kind: Scalar, text: str, at: str) -> Any:  # noqa: ANN401
        try:
            return kind.read(text)
        except (ValueError, OverflowError):
            found = "" if kind.is_secret else f"found {displayed(redacted(text))}, "
            self._fail(at, f"{found}must be {kind.allowed}")

    def _list(self, kind: ListOf, node: yaml.Node, at: str) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode) or len(node.value) < kind.min_items:
            self._fail(at, f"found {_what(node)}, must be {kind.allowed}")
        items = []
        firsts: dict[str, str] = {}
        for index, item in enumerate(node.value):
            inner = f"{at}[{index}]"
            self._places[inner] = self._place_of(item)
            if kind.unique:
                self._note_duplicate(item, f"{inner}.{kind.unique}", firsts)
            try:
                items.append(self._node(kind.item, item, inner))
            except _BadSettingError:
                continue
        return tuple(items)

    def _note_duplicate(self, item: yaml.Node, at: str, firsts: dict[str, str]) -> None:
        """Note if a list's earlier item has the same value; also where both have other problems."""
        name = at.rpartition(".")[2]
        for key, value in item.value if isinstance(item, yaml.MappingNode) else ():
            if key.value == name and isinstance(value, yaml.ScalarNode):
                self._places[at] = self._place_of(value)
                if (first := firsts.setdefault(value.value, at)) != at:
                    complaint = (
                        f"found {displayed(value.value)}, which is also {first}; must be unique"
                    )
                    self._note(at, complaint)

    def _text_map(self, kind: TextMap, node: yaml.Node, at: str) -> dict[str, str]:
        if kind.is_secret and isinstance(node, yaml.ScalarNode):
            self._fail(at, f"must be {kind.allowed}")  # `env: TOKEN=...` must not be repeated
        texts = {}
        for name, value in self._entries(node, at, None).items():
            inner = f"{at}.{name if name.isprintable() else displayed(name)}"
            if not kind.key.admits(name):
                self._note(inner, f"found key {displayed(name)}, must be {kind.key.allowed}")
            elif not isinstance(value, yaml.ScalarNode):
                self._note(inner, f"found {_what(value)}, must be {kind.value.allowed}")
            elif is_nothing(value) and value.value:
                if value.tag == NULL:
                    only = "which only takes away what an earlier file has"
                    self._note(inner, f"found {value.value}, {only}; quote it: '{value.value}'")
            elif not kind.value.admits(value.value):
                found = "" if kind.is_secret else f"found {displayed(value.value)}, "
                self._note(inner, f"{found}must be {kind.value.allowed}")
            else:
                texts[name] = value.value
        return texts

    def _entries(
        self, node: yaml.Node | None, at: str, known: list[str] | None
    ) -> dict[str, yaml.Node]:
        """The keys of a mapping that are known (None: any), each once."""
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            self._fail(at, f"found {_what(node)}, must be a mapping of keys to values")
        entries: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else _what(key)
            label = name if name.isprintable() else displayed(name)  # a problem is one line
            inner = f"{at}.{label}" if at else label
            if name in entries:
                first = self._places[inner].line
                self._places[inner] = self._place_of(key)
                self._note(inner, f"given twice, first in line {first:.0f}")
            elif known is not None and name not in known:
                self._places[inner] = self._place_of(key)
                self._note(inner, _unknown(name, known, at or TOP_LEVEL))
            else:
                self._places[inner] = self._place_of(key)
                entries[name] = value
        return entries


def _unknown(name: str, known: list[str], at: str) -> str:
    if name in REMOVED:
        return f"there is no such key any more: {REMOVED[name]}; remove it"
    nearest = difflib.get_close_matches(name, known, n=1)
    others = [place for place, keys in _keys(ClusterConfig, "") if name in keys]
    if others:
        also = f"; or did you mean {nearest[0]!r}?" if nearest else ""
        return f"belongs to {' or '.join(others)}, not to {at}: move it{also}"
    if nearest:
        return f"unknown key; nearest known key is {nearest[0]!r}"
    return f"unknown key; known keys are {', '.join(map(repr, known))}"


def _keys(section: type[Any], at: str) -> Iterator[tuple[str, list[str]]]:
    """All places that have keys, such as `nodes[]`, and these."""
    settings = list(settings_of(section))
    yield at or TOP_LEVEL, [setting.name for setting in settings]
    for setting in settings:
        inner = f"{at}.{setting.name}" if at else setting.name
        match setting.kind:
            case Section(of=held):
                yield from _keys(held, inner)
            case ListOf(item=Section(of=held)):
                yield from _keys(held, f"{inner}[]")


def _what(node: yaml.Node) -> str:
    """A YAML node in a few words."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list" if node.value else "an empty list"
    return "nothing" if is_nothing(node) else displayed(node.value)
