"""What names, images and amounts may look like, so that no cluster has to say it."""

from __future__ import annotations

import re

from hetero_hvd.config.value_types import CHECKPOINT_URL
from hetero_hvd.core.digits import whole_number
from hetero_hvd.errors import UserError

LABEL = r"[a-z]([a-z0-9-]*[a-z0-9])?"
"""A name that may be that of a Service: RFC 1123, and a letter first."""

NAME_ALLOWED = "small letters, digits and '-', a letter first, no '-' at the end"
MAX_NAME = 40
"""Leaves room for what we and Kubernetes add, within 63 characters."""

MAX_LABEL = 63
MAX_SUBDOMAIN = 253
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"({_HOST}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
)
_PORT = r"0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ENDPOINT = re.compile(rf"https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:{_PORT})?/?")
_CPU = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,9}m")
_BYTES = re.compile(r"[0-9]{1,15}([KMGTP]i|[kMGTP])?")
MAX_BYTES = 2**50


def name(flag: str, text: str, longest: int = MAX_NAME) -> str:
    """A name for what Kubernetes makes.

    Raises:
        UserError: It is none by RFC 1123, begins with no letter, or is too long.
    """
    if re.fullmatch(LABEL, text) is None or len(text) > longest:
        raise UserError(
            f"{flag}: found {text!r}, must be {NAME_ALLOWED}, at most {longest} characters "
            "(RFC 1123)"
        )
    return text


def subdomain(flag: str, text: str) -> str:
    """A name of several with dots between them, such as that of a storage class.

    Raises:
        UserError: It is none by RFC 1123.
    """
    part = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    if re.fullmatch(rf"{part}(\.{part})*", text) is None or len(text) > MAX_SUBDOMAIN:
        raise UserError(
            f"{flag}: found {text!r}, must be small letters, digits, '-' and '.' (RFC 1123)"
        )
    return text


def image(flag: str, text: str) -> str:
    """An image's name.

    Raises:
        UserError: It is none.
    """
    if _IMAGE.fullmatch(text) is None:
        raise UserError(
            f"{flag}: found {text!r}, must be [REGISTRY/]NAME[:TAG][@sha256:DIGEST], the name in "
            "small letters"
        )
    return text


def endpoint(flag: str, text: str) -> str:
    """The URL of a server, without anything below it.

    Raises:
        UserError: It is none.
    """
    if _ENDPOINT.fullmatch(text) is None:
        raise UserError(f"{flag}: found {text!r}, must be such as http://minio:9000")
    return text


def checkpoint_url(text: str | None) -> str | None:
    """Where checkpoints are kept, if it was said.

    Raises:
        UserError: It is no such place.
    """
    if text is None:
        return None
    try:
        return str(CHECKPOINT_URL.read(text))
    except ValueError as error:
        allowed = CHECKPOINT_URL.allowed
        raise UserError(f"--checkpoint-url: found {text!r}, must be {allowed}") from error


def cpu(flag: str, text: str) -> str:
    """How many cores, as Kubernetes writes it.

    Raises:
        UserError: It is no such amount, none at all, or more than any machine has.
    """
    return _amount(flag, text, _CPU, "cores above 0 and below 1000000, such as 4, 0.5 or 500m")


def memory(flag: str, text: str) -> str:
    """How many bytes, as Kubernetes writes it.

    Raises:
        UserError: It is no such amount, none at all, or more than any pod has.
    """
    allowed = "bytes above 0, at most 1Pi, such as 8Gi or 500Mi"
    if num_bytes(_amount(flag, text, _BYTES, allowed)) > MAX_BYTES:
        raise UserError(f"{flag}: found {text!r}, must be {allowed}")
    return text


def num_bytes(text: str) -> int:
    """An amount that `memory` takes."""
    number = text.rstrip("KMGTPik")
    unit = text.removeprefix(number)
    factor: int = (1024 if unit.endswith("i") else 1000) ** " KMGTP".index(unit[:1].upper() or " ")
    return int(number) * factor


def _amount(flag: str, text: str, pattern: re.Pattern[str], allowed: str) -> str:
    if pattern.fullmatch(text) is None or not re.search("[1-9]", text):
        raise UserError(f"{flag}: found {text!r}, must be {allowed}")
    return text


def command(words: tuple[str, ...]) -> tuple[str, ...]:
    """What is run.

    Raises:
        UserError: It holds what no file of text can.
    """
    return tuple(plain_text("after --", word) for word in words)


def plain_text(flag: str, text: str) -> str:
    """What a file of text can hold.

    Raises:
        UserError: It cannot.
    """
    if "\0" in text or re.search(r"[\ud800-\udfff]", text):
        raise UserError(f"{flag}: {text!r} must be text in UTF-8; rename the file, say")
    return text


def count(flag: str, text: str, minimum: int, maximum: int) -> int:
    """A number of things.

    Raises:
        UserError: It is none, or out of range.
    """
    number = whole_number(text)
    if number is None or not minimum <= number <= maximum:
        raise UserError(f"{flag}: found {text!r}, must be an integer from {minimum} to {maximum}")
    return number
