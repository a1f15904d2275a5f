"""One declaration for each setting, from which checks, flags, variables and docs all follow.

A setting is a field of a frozen dataclass that is made by `setting`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from hetero_hvd.config.value_types import Kind
from hetero_hvd.errors import ConfigError

ENVIRONMENT_PREFIX = "HETERO_HVD_"

REMOVED = {"channel_tls": "driver and workers always use TLS"}
"""Settings that there were, and why each is needed no more."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting, as declared.

    Attributes:
        name: Key in nodes.yaml and field of the dataclass.
        kind: What it may hold.
        doc: One line with unit and the reason of the default.
        default: Value where none is given; `dataclasses.MISSING` if one must be given.
        default_text: The default in words, where it depends on something else.
    """

    name: str
    kind: Kind
    doc: str
    default: Any
    default_text: str | None

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING


def setting(kind: Kind, doc: str, *, default_text: str | None = None, **default: Any) -> Any:  # noqa: ANN401
    """A field of a dataclass that is a setting.

    Args:
        kind: What its value may be.
        doc: One line for its page and for `--help`.
        default_text: The default in words, where the value does not say it.
        default: `default` or `default_factory`, as of `dataclasses.field`; neither: it is required.
    """
    metadata = {"kind": kind, "doc": doc, "default_text": default_text}
    return dataclasses.field(metadata=metadata, **default)


def settings_of(section: type[Any]) -> Iterator[Setting]:
    """The settings that a dataclass declares, in order."""
    for field in dataclasses.fields(section):
        if field.metadata:
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            yield Setting(name=field.name, default=default, **field.metadata)


def check(section: Any, relations: Iterable[tuple[str, str]]) -> None:  # noqa: ANN401
    """Check a section: each setting by its kind, then what settings demand of each other.

    Args:
        section: An instance of a dataclass that declares settings.
        relations: Setting and complaint; read only if every setting is right by itself.

    Raises:
        ConfigError: Each problem is `setting: complaint`.
    """
    problems = [
        f"{setting.name}: {_found(setting, value)}must be {setting.kind.allowed}"
        for setting in settings_of(type(section))
        if (value := getattr(section, setting.name)) is not setting.default
        and not setting.kind.admits(value)
    ]
    problems = problems or [f"{name}: {complaint}" for name, complaint in relations]
    if problems:
        raise ConfigError(problems)


def _found(setting: Setting, value: object) -> str:
    is_secret = getattr(setting.kind, "is_secret", False)
    return "" if is_secret else f"found {displayed(value)}, "


def displayed(found: object) -> str:
    """A found value on one short line."""
    line = repr(found)
    return line if len(line) <= 60 else line[:57] + "..."  # noqa: PLR2004 - fits a line with its place
