"""Files as a tree of YAML nodes that remember their lines: safe to read whatever they hold."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from hetero_hvd.errors import ConfigError

MAX_FILE_BYTES = 2**20
"""Ten thousand nodes fit; a file by mistake (a data set, a log) is refused before it is parsed."""

MAX_DEPTH = 16

NAMED = "nodes"
"""The key of the list whose items are told apart by their `name`."""

NULL = "tag:yaml.org,2002:null"
TAKEN_AWAY = "!taken-away"
"""The tag of a key without a value, and of one that had a value in an earlier file."""


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
        loader.name = str(path)  # which each part of the tree remembers beside its line
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


# Several files as one.


def layered(trees: Iterable[yaml.Node | None]) -> yaml.Node | None:
    """One tree of several, the strongest last.

    Mappings are merged key by key, and nodes by their name; whatever else a later file has takes
    the place of what an earlier one has. A key without a value there is `TAKEN_AWAY`. Each part
    remembers the file and the line it came from. A key or a node that stands twice in one file
    stays so, as that file has it, for the reader to find.

    Args:
        trees: Of the files; None for an empty one.

    Returns:
        The tree; None if all files are empty.

    Raises:
        ConfigError: A later file has a mapping, a list or a text where an earlier one has another
            of these.
    """
    found: yaml.Node | None = None
    for tree in trees:
        found = tree if found is None else _over(found, tree)
    return found


def _over(base: yaml.Node, tree: yaml.Node | None, *, at: str = "") -> yaml.Node:
    if tree is None:
        return base
    if isinstance(base, yaml.MappingNode) and isinstance(tree, yaml.MappingNode):
        return _mapping(base, tree, at)
    if is_nothing(tree) and base.tag != NULL:
        return yaml.ScalarNode(TAKEN_AWAY, tree.value, tree.start_mark, tree.end_mark)
    if is_nothing(base) or is_nothing(tree):
        return tree
    if type(base) is not type(tree):
        place = f"{_line_of(tree)}: {at}" if at else _line_of(tree)
        raise ConfigError(
            [f"{place}: found {_kind(tree)}, but {_line_of(base)} has {_kind(base)}; one is wrong"]
        )
    is_of_nodes = isinstance(tree, yaml.SequenceNode) and at == NAMED
    return _named_items(base, tree) if is_of_nodes else tree


def _line_of(node: yaml.Node) -> str:
    return f"{node.start_mark.name}:{node.start_mark.line + 1}"


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "a text"  # it may be a secret
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def _mapping(base: yaml.MappingNode, tree: yaml.MappingNode, at: str) -> yaml.MappingNode:
    pairs = list(base.value)
    places = _numbered(key.value if _is_text(key) else "" for key, _ in pairs)
    for key, value in tree.value:
        match places.pop(key.value, ()) if _is_text(key) else ():
            case (place,):
                inner = f"{at}.{key.value}" if at else key.value
                pairs[place] = (key, _over(pairs[place][1], value, at=inner))
            case ():
                pairs.append((key, value))
    return yaml.MappingNode(tree.tag, pairs, tree.start_mark, tree.end_mark)


def _named_items(base: yaml.Node, tree: yaml.Node) -> yaml.SequenceNode:
    items = list(base.value)
    places = _numbered(map(_name, items))
    for item in tree.value:
        match places.pop(_name(item), ()):
            case (place,):
                items[place] = _over(items[place], item, at=f"{NAMED}[{place}]")
            case ():
                items.append(item)
    return yaml.SequenceNode(tree.tag, items, tree.start_mark, tree.end_mark)


def _numbered(names: Iterable[str]) -> dict[str, list[int]]:
    """At which numbers each name stands; no name is none."""
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        if name:
            found.setdefault(name, []).append(number)
    return found


def _name(item: yaml.Node) -> str:
    """Of a node of the cluster; empty if it has none."""
    pairs = item.value if isinstance(item, yaml.MappingNode) else ()
    return next(
        (value.value for key, value in pairs if key.value == "name" and _is_text(value)), ""
    )


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def is_nothing(node: yaml.Node) -> bool:
    """Whether a key stands without a value."""
    return node.tag in {NULL, TAKEN_AWAY}


def with_nodes(root: yaml.Node | None, granted: yaml.Node | None) -> yaml.Node | None:
    """A file's tree with other nodes; of these, what the file says under their names counts more.

    Args:
        root: Of the file; None: there is nothing in it.
        granted: A tree with nothing but nodes, of names and other texts.

    Returns:
        The tree; the file's own where its list of nodes is wrong, for the reader to find.
    """
    if not isinstance(root, yaml.MappingNode) or not isinstance(granted, yaml.MappingNode):
        return granted if root is None else root
    lists = [value for key, value in root.value if key.value == NAMED and not is_nothing(value)]
    if len(lists) > 1 or not all(isinstance(one, yaml.SequenceNode) for one in lists):
        return root
    known = {_name(item): item for one in lists for item in one.value}
    if "" in known or len(known) < sum(len(one.value) for one in lists):
        return root
    ((key, nodes),) = granted.value
    nodes.value = [_over(item, known.get(_name(item))) for item in nodes.value]
    others = [pair for pair in root.value if pair[0].value != NAMED]
    return yaml.MappingNode(root.tag, [*others, (key, nodes)], root.start_mark, root.end_mark)


def names_in(root: yaml.Node | None) -> list[str]:
    """The names of the nodes that a tree lists, as far as it is one of nodes.yaml."""
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    listed = next((value for key, value in pairs if key.value == NAMED), None)
    return [name for item in getattr(listed, "value", None) or () if (name := _name(item))]


# Files for others to read.


class _Dumper(yaml.SafeDumper):
    """Quotes each text that some reader of YAML could take for a number or a yes."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - any value: it is written out
        return True


PLAIN = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][A-Za-z0-9./_-]*", re.IGNORECASE
)
"""Text that means the same to readers of YAML 1.1 and 1.2."""


OTHER_BREAKS = re.compile("[\\x85\\u2028\\u2029]")
"""Line breaks of YAML 1.1, ordinary characters in YAML 1.2: in quotes they are escaped."""


def _represented(dumper: _Dumper, text: str) -> yaml.Node:
    is_block = "\n" in text and not OTHER_BREAKS.search(text)
    style = None if PLAIN.fullmatch(text) else "|" if is_block else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)


def yaml_text(*documents: object) -> str:
    """Plain data as YAML, a document each, for any reader: Kubernetes, Docker, ours."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
