"""The one form in which everything is refused over HTTP: JSON with one line, `error`."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of all answers: a page runs no script but ours, and asks nobody else."""

MAX_SHOWN = 100
"""Characters of what a request holds."""

_MORE = {401: {"WWW-Authenticate": "Bearer"}, 415: {"Accept-Encoding": "identity"}}


class RequestProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not acted on: what is wrong, what is allowed, what to do."""

    error: str


def problem(code: int, words: str) -> Response:
    """An answer of a status and a reason."""
    content = msgspec.json.encode(RequestProblem(error=words))
    headers = HEADERS | _MORE.get(code, {})
    return Response(content, code, headers=headers, media_type="application/json")


def shown(text: str) -> str:
    """What a request holds, in one line of bounded length."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")
