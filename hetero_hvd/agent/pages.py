"""What the agent tells of its node over HTTP, to who shows the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from hetero_hvd.probes.machine.inventory import take_inventory
from hetero_hvd.probes.machine.node_metrics import Newest, node_page
from hetero_hvd.security.token import TokenFile, holds
from hetero_hvd.security.web_socket import Headers, Request, Response


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        content_type: MIME type.
        body: Makes it, at each request anew.
    """

    content_type: str
    body: Callable[[], bytes]


class Pages:
    """All pages; a plain GET on the agent's port.

    Args:
        newest: Gives the newest sample of this node, if there is one.
        token: Has the one that a reader must show; None: there are no pages.
    """

    def __init__(self, newest: Newest, token: TokenFile | None) -> None:
        self._token = token
        content_type, metrics = node_page(newest)
        self._pages = {
            "/metrics": Page(content_type, metrics),
            "/hardware": Page("application/json", _hardware),
        }

    @property
    def are_there(self) -> bool:
        """Whether anybody can read them."""
        return self._token is not None

    async def answer(self, request: Request) -> Response | None:
        """The page that a request asks for; None if there is none, or not for this reader."""
        page = self._pages.get(request.path)
        shown = request.headers.get_all("Authorization")
        if page is None or self._token is None or len(shown) != 1:
            return None
        if not holds(shown[0], self._token.current):
            return None
        body = await asyncio.to_thread(page.body)  # asking GPUs takes a while
        headers = Headers()
        headers["Content-Type"] = page.content_type
        headers["Content-Length"] = str(len(body))
        headers["Connection"] = "close"
        return Response(HTTPStatus.OK.value, HTTPStatus.OK.phrase, headers, body)


def _hardware() -> bytes:
    """What `hetero-hvd nodes hardware --json` says in the agent's folder."""
    return json.dumps(take_inventory(Path()).as_dict()).encode()
