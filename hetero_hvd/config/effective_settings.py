"""Every setting of a cluster with its value and where that came from, for a person to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetero_hvd.config.cluster import ClusterConfig
from hetero_hvd.config.setting import Setting, settings_of
from hetero_hvd.config.value_types import ListOf, Scalar, Section, TextMap
from hetero_hvd.core.redaction import redacted_command

HELD = "(set)"
"""In the place of a value that is secret."""


def effective_settings(cluster: ClusterConfig) -> Iterator[tuple[str, str, str]]:
    """Setting, value and source of all settings, in the order of their declaration.

    Values of `env` are left out, since some of them are secrets.
    """
    for at, value in _walk(cluster, ""):
        yield at, value, cluster.sources.get(at, "default")


def _walk(section: Any, at: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any section
    for setting in settings_of(type(section)):
        value = getattr(section, setting.name)
        inner = f"{at}.{setting.name}" if at else setting.name
        if isinstance(setting.kind, Section) and value is not None:
            yield from _walk(value, inner)
        elif isinstance(setting.kind, ListOf) and isinstance(setting.kind.item, Section):
            for index, item in enumerate(value):
                yield from _walk(item, f"{inner}[{index}]")
        else:
            yield inner, value_text(setting, value)


def value_text(setting: Setting, value: Any) -> str:  # noqa: ANN401 - any setting's value
    """A value as it would stand in nodes.yaml, or the default in words if there is none."""
    if value is None or value == "" or value == setting.default == ():
        return setting.default_text or "none"
    if isinstance(setting.kind, Scalar | TextMap) and setting.kind.is_secret:
        value = dict.fromkeys(value, HELD) if isinstance(value, dict) else HELD
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {text}" for name, text in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(redacted_command(map(str, value))) + "]"
    return scalar_text(value)


def scalar_text(value: object) -> str:
    """A single value as a file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
