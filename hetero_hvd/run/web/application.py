"""A server's page and API behind one guard, where every refusal has the same form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from hetero_hvd.run.web.access import Access, Role
from hetero_hvd.run.web.operations import (
    DOCUMENT,
    ApiOperation,
    BodyLimits,
    Handler,
    HttpApi,
    Parameters,
    Refuse,
)
from hetero_hvd.run.web.pages import page_routes
from hetero_hvd.run.web.problems import HEADERS, problem, shown
from hetero_hvd.security.connection_limiter import ConnectionLimiter

DEFECT = "this server has a defect, which its log tells with this request; nothing else is affected"


class HttpApplication:
    """Used in the loop's thread only.

    Args:
        operations: Of the API.
        page: HTML of the page; beside it are its scripts and styles.
        access: Who may do what.
        door: Is told whose requests are answered.
        parameters: That the operations name.
        limits: Of requests.
        title: Of the API's document.

    Attributes:
        refused: Requests turned away.
    """

    def __init__(
        self,
        operations: Sequence[ApiOperation],
        *,
        page: Path,
        access: Access,
        door: ConnectionLimiter,
        parameters: Parameters,
        limits: BodyLimits,
        title: str,
    ) -> None:
        self.refused = 0
        self._page = page
        self._access = access
        self._door = door
        self._api = HttpApi(
            operations, parameters=parameters, limits=limits, refuse=self.refuse, title=title
        )

    def app(self) -> Starlette:
        """The ASGI application."""
        # A page holds nothing of its own; what it shows it must ask for.
        routes = page_routes(self._page, partial(self._guarded, None))
        routes += self._api.routes(self._guarded)
        cors = Middleware(_Cors, refuse=self.refuse, origins=self._access.origins)
        made = Starlette(
            routes=routes,
            middleware=[cors] if self._access.origins else [],
            exception_handlers={HTTPException: self._no_route, Exception: self._defect},
        )
        made.router.redirect_slashes = False  # to a host that only the request names
        return made

    def refuse(self, code: int, words: str) -> Response:
        """An answer of a status and a reason, which is counted."""
        self.refused += 1
        return problem(code, words)

    def _guarded(self, role: Role | None, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if (refused := self._refused(role, request)) is not None:
                return refused
            response = await handler(request)
            response.headers.update(HEADERS)
            return response

        return guarded

    def _refused(self, role: Role | None, request: Request) -> Response | None:
        """Why it is not answered; None: it is."""
        access, headers = self._access, request.headers
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if not access.is_addressed_here(host):
            words = "this server goes by localhost, 127.0.0.1 or [::1], as it listens there only"
            return self._turned_away(request, 421, f"Host {shown(host)}: {words}")
        if role is not None:
            authorization = headers.get("authorization", "")
            if not access.may(role, authorization):
                words = f"{_asked(request)}: {access.why_not(role, authorization)}"
                return self._turned_away(request, 401, words)
            if role != "read" and not access.is_from_here(origin, host):
                words = (
                    "a page elsewhere gives no orders; a hub lists those that may by --http-cors"
                )
                return self._turned_away(request, 403, f"Origin {shown(origin)}: {words}")
            self._door.authenticated(_peer(request))
        self._door.tolerate(_peer(request))
        return None

    def _turned_away(self, request: Request, code: int, words: str) -> Response:
        """The same for who is a stranger yet: the log tells it in these words, too."""
        self._door.answered(_peer(request), words)
        return self.refuse(code, words)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        """For a path or method that is none."""
        if not isinstance(error, HTTPException):
            raise error
        if allowed := (error.headers or {}).get("Allow"):
            methods = sorted(allowed.split(", "))
            words = f"the method must be {' or '.join(methods)}"
        else:
            words = f"there is no such path; GET {DOCUMENT} tells of all there are"
        words = f"{_asked(request)}: {words}"
        response = self._turned_away(request, error.status_code, words)
        response.headers.update(error.headers or {})
        return response

    async def _defect(self, request: Request, _error: Exception) -> Response:
        """For what is our fault; uvicorn has it in the log."""
        return self.refuse(500, f"{_asked(request)}: {DEFECT}")


class _Cors(CORSMiddleware):
    """Refuses pages elsewhere as everything else is refused."""

    def __init__(self, app: ASGIApp, *, refuse: Refuse, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
        self._refuse = refuse

    def preflight_response(self, request_headers: Headers) -> Response:
        found = super().preflight_response(request_headers)
        if found.status_code == 200:  # noqa: PLR2004 - HTTP
            return found
        origin = shown(request_headers["origin"])
        listed = ", ".join(self.allow_origins)
        words = f"Origin {origin}: {bytes(found.body).decode()}; listed by --http-cors: {listed}"
        return self._refuse(found.status_code, words)


def _peer(request: Request) -> tuple[object, ...]:
    return tuple(request.client or ())


def _asked(request: Request) -> str:
    return f"{request.method} {shown(request.url.path)}"
