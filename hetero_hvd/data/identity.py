"""What a file is known by in the cache: all that decides on which content its address gives."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from hetero_hvd.data.file_system import WEB, scheme_of, split_query

SIGNATURES = {
    "x-amz-signature": (
        "x-amz-algorithm x-amz-credential x-amz-date x-amz-expires x-amz-security-token "
        "x-amz-signedheaders"
    ),
    "x-goog-signature": (
        "x-goog-algorithm x-goog-credential x-goog-date x-goog-expires x-goog-signedheaders"
    ),
    "signature": ("awsaccesskeyid googleaccessid expires policy key-pair-id x-amz-security-token"),
    "sig": "se sip ske skoid sks skt sktid skv sp spr sr st sv",
}
"""Parameter of a signed link to those that come with it, in lower case: who may read until when. As
S3, Google, both of old with CloudFront, and Azure sign. A new link to a content has others."""

_PROCESS = uuid.uuid4().hex


def identity_of(url: str, options: Mapping[str, Any]) -> str:
    """A text that is the same for the same place, asked in the same way.

    Args:
        url: Of the source.
        options: For its file system.
    """
    scheme = scheme_of(url)
    address, pairs = split_query(url) if scheme in WEB else (url, [])
    parts = urlsplit(address) if scheme in WEB else None
    user = parts.username or "" if parts is not None else ""
    if parts is not None:
        host = parts.netloc.rpartition("@")[2]
        address = f"{scheme}://{host}{parts.path}"
    meaning = sorted(without_signature(pairs))
    return repr((address.rstrip("/"), user, meaning, canonical(options)))


def without_signature(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The parameters of a link that say what is wanted, and not who may have it."""
    given = list(pairs)
    names = {name.lower() for name, _ in given}
    signing = {
        name
        for mark, others in SIGNATURES.items()
        if mark in names
        for name in (mark, *others.split())
    }
    return [(name, value) for name, value in given if name.lower() not in signing]


def canonical(value: object) -> str:
    """An option as text that is the same in all processes; an object without one is this one's."""
    if isinstance(value, Mapping):
        pairs = sorted((repr(name), canonical(each)) for name, each in value.items())
        return f"{{{', '.join(f'{name}: {each}' for name, each in pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(canonical, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(canonical, value)))}}}"
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return repr(value)
    text = repr(value)
    return f"{text} {_PROCESS}" if " at 0x" in text else text
