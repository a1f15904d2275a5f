"""A run's events as lines of JSON. JSON has no NaN: what was not measured is null there."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from hetero_hvd.messages.events import Event

NO_JSON = msgspec.DecodeError, UnicodeDecodeError, RecursionError
"""What msgspec raises at what it cannot read; wrong text and deep nesting are no DecodeError."""

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_TYPES = {kind.__name__: kind for kind in get_args(Event)}


def event_to_json(event: Event) -> bytes:
    """One line without its end."""
    return msgspec.json.encode(event)


def event_from_json(line: bytes | str) -> Event:
    """The event that a line tells of, equal to the one that was written (NaN aside).

    Raises:
        msgspec.DecodeError: It is no JSON, or no event.
    """
    try:
        return _event_in(line.encode() if isinstance(line, str) else line)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deep") from error


def _event_in(data: bytes) -> Event:
    if b"null" not in data:
        return _DECODER.decode(data)
    plain = msgspec.json.decode(data)
    kind = _TYPES.get(plain.get("type", "")) if isinstance(plain, dict) else None
    restored = plain if kind is None else _restored(plain, kind)
    event: Event = msgspec.convert(restored, Event, str_keys=True)
    return event


def _restored(found: Any, kind: Any) -> Any:  # noqa: ANN401 - JSON, and any annotation
    """NaN in the place of null where the type asks for a number."""
    if found is None:
        return math.nan if kind is float else None
    if isinstance(found, dict):
        fields = _fields(kind)
        if fields is not None:
            return {name: _restored(value, fields.get(name)) for name, value in found.items()}
        if get_origin(kind) is dict:
            return {name: _restored(value, get_args(kind)[1]) for name, value in found.items()}
    if isinstance(found, list) and get_origin(kind) is tuple:
        return [_restored(value, get_args(kind)[0]) for value in found]
    return found


@cache
def _fields(kind: Any) -> dict[str, Any] | None:  # noqa: ANN401
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
