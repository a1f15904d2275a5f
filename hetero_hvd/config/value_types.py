"""What a setting may hold: how its text is read, which values are admitted, and how to say so.

YAML guesses types from the look of a value (`no` is false, `010` is eight, `1e3` is text). Here the
setting decides: a kind reads the text as it was written.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hetero_hvd.messages import NODE_NAME

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]i?B|B|)")
MAX_LABEL = 63
"""Characters of a host's name between two dots."""

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Scalar:
    """One value.

    Attributes:
        allowed: Completes "must be ...".
        convert: Text to value; raises ValueError.
        admits: Whether a value of the right type or any other is allowed.
        is_text: The value is the text itself, so what YAML takes for something else needs quotes.
        is_secret: Values never appear in messages or listings.
    """

    allowed: str
    convert: Callable[[str], Any]
    admits: Callable[[Any], bool]
    is_text: bool = False
    is_secret: bool = False

    def read(self, text: str) -> Any:  # noqa: ANN401 - whatever the setting's type is
        """The value that a text stands for.

        Raises:
            ValueError: It stands for none that is allowed.
        """
        value = self.convert(text)
        if not self.admits(value):
            raise ValueError(text)
        return value


@dataclass(frozen=True)
class TextMap:
    """Names to texts, taken as they are written.

    Attributes:
        is_secret: Values never appear in messages or listings.
    """

    key: Scalar
    value: Scalar
    is_secret: bool = False
    allowed: str = "a mapping of names to texts"

    def admits(self, found: object) -> bool:
        """Whether every name and every text is allowed."""
        return isinstance(found, dict) and all(
            self.key.admits(key) and self.value.admits(value) for key, value in found.items()
        )


@dataclass(frozen=True)
class Section:
    """Settings of their own, declared by a dataclass."""

    of: type[Any]
    allowed: str = "a mapping"

    def admits(self, found: object) -> bool:
        """Whether it is that dataclass, which checks itself."""
        return isinstance(found, self.of)


@dataclass(frozen=True)
class ListOf:
    """Several of one kind.

    Attributes:
        min_items: Fewest allowed.
        unique: Setting of the items that no two may share.
    """

    item: Scalar | Section
    allowed: str
    min_items: int = 0
    unique: str | None = None

    def admits(self, found: object) -> bool:
        """Whether there are enough items, each allowed, none a duplicate."""
        if not isinstance(found, tuple) or len(found) < self.min_items:
            return False
        if not all(self.item.admits(item) for item in found):
            return False
        return self.unique is None or len({getattr(i, self.unique) for i in found}) == len(found)


Kind = Scalar | TextMap | Section | ListOf


def _matching(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match


def integer(minimum: int, maximum: int | None = None) -> Scalar:
    """A whole number in plain decimal digits, bounds included."""
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return Scalar(
        f"an integer {bounds}",
        lambda text: int(_matching(_INTEGER, text)[0]),
        lambda value: (
            type(value) is int and minimum <= value <= (math.inf if maximum is None else maximum)
        ),
    )


def number(*, above: float = -math.inf, minimum: float = -math.inf, maximum: float = 1e6) -> Scalar:
    """A finite decimal number; `above` is excluded, `minimum` and `maximum` are included.

    The default maximum, in seconds, is one that every clock and timeout can take.
    """
    low = f"above {above:g}" if math.isfinite(above) else f"of at least {minimum:g}"
    return Scalar(
        f"a number {low} and at most {maximum:g}",
        lambda text: float(_matching(_NUMBER, text)[0]),
        lambda value: (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and above < value <= maximum
            and value >= minimum
        ),
    )


def boolean() -> Scalar:
    """True or false, in the spellings that YAML 1.1 and environments use."""
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}

    def convert(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    return Scalar("true or false", convert, lambda value: isinstance(value, bool))


def choice(*words: str) -> Scalar:
    """One of a few words."""
    return Scalar(" or ".join(map(repr, words)), str, lambda value: value in words)


def text(pattern: str | re.Pattern[str], allowed: str) -> Scalar:
    """A text that matches a pattern as a whole."""
    compiled = re.compile(pattern)
    return Scalar(
        allowed,
        str,
        lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None,
        is_text=True,
    )


def byte_size(minimum: int, minimum_text: str) -> Scalar:
    """A number of bytes, with or without a unit."""

    def convert(text: str) -> int:
        amount, unit = _matching(_BYTES, text).groups()
        step = 1024.0 if "i" in unit else 1000.0
        return round(float(amount) * math.pow(step, _POWERS[unit.rstrip("iB")]))

    return Scalar(
        f"a size such as 8GiB, 512MB or a number of bytes, at least {minimum_text}",
        convert,
        lambda value: type(value) is int and value >= minimum,
    )


def _is_host(value: object) -> bool:
    """A host name or address that is safe as an argument of ssh; numeric ones must be real."""
    if not isinstance(value, str) or not re.fullmatch(
        r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,252}", value
    ):
        return False
    if ":" not in value and "%" not in value and re.search(r"[^0-9.]", value):
        return all(0 < len(part) <= MAX_LABEL for part in value.removesuffix(".").split("."))
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _is_web_address(value: object) -> bool:
    """Whether it is http or https, with a host, and with a port that can be."""
    if not isinstance(value, str) or not re.fullmatch(r"https?://[!-~]+", value):
        return False
    try:
        parts = urlsplit(value)
        return _is_host(parts.hostname) and parts.port != 0
    except ValueError:
        return False


BROADCAST = "255.255.255.255"


def is_one_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether one machine may have it: not one of all, of a group, or that stands for any.

    IPv6 may write those of IPv4, as `::ffff:0.0.0.0`.
    """
    plain = getattr(address, "ipv4_mapped", None) or address
    return not (plain.is_unspecified or plain.is_multicast or str(plain) == BROADCAST)


def is_loopback(address: str) -> bool:
    """Whether only this machine is reached there."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def host_in_url(address: str) -> str:
    """As it is written before a port: IPv6 in brackets (RFC 3986, section 3.2.2)."""
    return f"[{address}]" if ":" in address else address


def _device(text: str) -> int | str:
    """A CUDA device: its index, or its UUID as `nvidia-smi -L` prints it."""
    return int(text) if _INTEGER.fullmatch(text) else text


def _is_device(value: object) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"(GPU|MIG)-[A-Za-z0-9/-]+", value) is not None
    return type(value) is int and value >= 0


NAME = text(NODE_NAME, "1 to 64 letters, digits, '.' or '-', a letter or digit at both ends")
HOST = Scalar("a host name or an IP address, without a port", str, _is_host, is_text=True)
LOGIN = text(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "a login name")
INTERFACE = text(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,14}", "the name of one network interface")
PATH = text(
    r"[^\x00-\x1f\x7f\ud800-\udfff-][^\x00-\x1f\x7f\ud800-\udfff]*",
    "a path, on one line and not beginning with '-'",
)
OWN_FOLDER = text(
    r"(?!/[/.]*$)[^\x00-\x1f\x7f\ud800-\udfff-][^\x00-\x1f\x7f\ud800-\udfff]*",
    "a path, on one line, not beginning with '-' and not '/', which has no name",
)
NAMES = text(
    rf"{NODE_NAME.pattern}(,{NODE_NAME.pattern})*", "names of nodes with commas between, no blanks"
)
WORKERS = text(
    rf"{NODE_NAME.pattern}:\d+(,{NODE_NAME.pattern}:\d+)*",
    "workers as NODE:SLOT with commas between, no blanks",
)
SLOT = text(rf"{NODE_NAME.pattern}:\d{{1,4}}", "a slot as NODE:SLOT")
HUB = text(r"auto|[^\s,]{1,300}:\d{1,5}", "auto, or HOST:PORT of a hub")
STEPS = text(
    r"\d{1,15}:\d{1,15}", "two steps with ':' between: the first one, and the one after the last"
)
METRIC = text(r"-?[^\s-]\S*", "the name of a metric, with '-' in front if less is better")
CHECKPOINT_URL = text(
    r"(s3|gs)://[^/\s?#@]+(/[^\s?#@]*)?|file:///[^\s?#]+",
    "a URL such as s3://bucket/path, gs://bucket/path or file:///path, without '?' and without a "
    "password, which belongs into the environment",
)
EXPORTS = ListOf(
    text(r"[a-z][a-z0-9+.-]*:\S*", "a URL without blanks, such as csv:run.csv"),
    "a list of URLs; as one text, with blanks between them",
)
TAG_NAME = re.compile(r"[A-Za-z_]\w{0,62}", re.ASCII)
TITLE = Scalar(
    "one line of text", str, lambda value: isinstance(value, str) and value.isprintable()
)
TAGS = ListOf(
    text(
        rf"(?a:{TAG_NAME.pattern})=\S*",
        "NAME=VALUE without blanks, the name of letters, digits and '_'",
    ),
    "NAME=VALUE with blanks between them, the names of letters, digits and '_'",
)
WEBHOOK = Scalar(
    "a URL such as https://example.org/hook, of http or https, without blanks",
    str,
    _is_web_address,
    is_text=True,
    is_secret=True,
)
COMMAND = ListOf(
    text(r"[^\x00]+", "a text without NUL, not empty"),
    "a list of a program and its arguments, such as [notify, --loud]",
)
DEVICE = Scalar(
    "a device index such as 0, or a UUID that begins with GPU- or MIG-", _device, _is_device
)
ENVIRONMENT = TextMap(
    text(r"(?!CUDA_VISIBLE_DEVICES$)[A-Za-z_][A-Za-z0-9_]*",
         "letters, digits and '_'; for CUDA_VISIBLE_DEVICES use 'devices'"),
    text(r"[^\x00]*", "a text without NUL"),
    is_secret=True,
)  # fmt: skip
SSH_OPTIONS = TextMap(
    text(r"[A-Za-z]+", "a keyword of ssh_config, such as ConnectTimeout"),
    text(r"[^\x00-\x1f\x7f]+", "a text on one line"),
)
SRUN_OPTIONS = TextMap(
    text(r"[a-z][a-z0-9-]*", "a long option of srun without its dashes, such as het-group"),
    text(r"[^\x00-\x1f\x7f]*", "a text on one line"),
)
