"""The little of HTTP that Horovod's rendezvous client speaks, read within strict limits."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import NamedTuple

MAX_HEAD_BYTES = 8192
MAX_BODY_BYTES = 2**20

REQUEST_LINE = re.compile(rb"([A-Z]{1,10}) /([!-.0-~]{1,200})/([!-.0-~]{1,200}) HTTP/1\.[01]")
CONTENT_LENGTH = re.compile(rb"(?im)^content-length[ \t]*:[ \t]*(.*?)[ \t]*\r?$")
NUMBER = re.compile(rb"[0-9]{1,12}")


class Request(NamedTuple):
    """One parsed request."""

    method: str
    scope: str
    key: str
    body: bytes


class RequestError(Exception):
    """A request that is refused with this status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read one request, within the limits.

    Raises:
        RequestError: It is malformed or too large.
        EOFError: The client left.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from error
    line, _, fields = head.partition(b"\r\n")
    match = REQUEST_LINE.fullmatch(line)
    lengths = CONTENT_LENGTH.findall(fields) or [b"0"]
    is_plain = len(lengths) == 1 and NUMBER.fullmatch(lengths[0])
    if match is None or not is_plain or b"transfer-encoding" in fields.lower():
        raise RequestError(HTTPStatus.BAD_REQUEST)
    num_bytes = int(lengths[0])
    if num_bytes > MAX_BODY_BYTES:
        raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    body = await reader.readexactly(num_bytes)
    method, scope, key = (part.decode("ascii") for part in match.groups())
    return Request(method, scope, key, body)


async def reply(writer: asyncio.StreamWriter, status: HTTPStatus, body: bytes) -> None:
    """Answer and say that the connection ends."""
    send(writer, status, body)
    await writer.drain()


def send(writer: asyncio.StreamWriter, status: HTTPStatus, body: bytes) -> None:
    """The same without waiting for the client to take it."""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode("ascii") + body)
