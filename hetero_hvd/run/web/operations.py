"""The operations of an HTTP API: one table from which requests are answered and described.

The driver's API and the hub's are both made of it, so that they refuse, limit and describe alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hetero_hvd.core.digits import whole_number
from hetero_hvd.errors import UserError
from hetero_hvd.run.web.access import Role
from hetero_hvd.run.web.problems import RequestProblem, shown
from hetero_hvd.security.token import shown_token
from hetero_hvd.version import __version__

DOCUMENT = "/v1/openapi.json"
JSON, TEXT, EVENT_STREAM = "application/json", "text/plain", "text/event-stream"
FORM = "application/x-www-form-urlencoded"
Parameters = Mapping[str, dict[str, Any]]
"""Name of a parameter to how OpenAPI describes it."""

Handler = Callable[[Request], Awaitable[Response]]
Guard = Callable[[Role | None, Handler], Handler]
"""Makes a handler one that answers only who may act in a role; None: everybody."""

Refuse = Callable[[int, str], Response]
"""Makes an answer of a status and a reason, and counts it."""

MAX_UNREAD_BYTES = 16 * 2**20
"""Of a body that is too long: more is not waited for before it is refused."""

_REFUSALS = {
    "400": "It is not understood.",
    "401": "The token of the role is not shown.",
    "403": "It comes from a page elsewhere.",
    "404": "There is none.",
    "408": "It was not complete in time.",
    "409": "It cannot be done now, or is in conflict with what is there.",
    "413": "It is too large.",
    "415": "It is no JSON by its headers.",
    "421": "This server goes by another name.",
    "429": "It is more than this source may send; see Retry-After.",
    "500": "This server has a defect.",
    "503": "Its disk does not take it, or too many listen.",
}


class Answer(NamedTuple):
    """What an operation gives.

    Attributes:
        content: Of JSON's kinds.
        status: Of HTTP.
        headers: Further ones.
    """

    content: Any
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - is never changed


class Asked(NamedTuple):
    """A request that may be acted on.

    Attributes:
        path: Parameters of its path.
        query: Of its query.
        body: What it holds; None: nothing.
        num_bytes: Of that.
        token: Who asks, as far as it is told apart.
        shown: The token itself, of who may ask.
        name: Last word of the operation's path.
        accept: Forms of an answer that are asked for; empty: any.
    """

    path: dict[str, str]
    query: dict[str, str]
    body: Any = None
    num_bytes: int = 0
    token: str = ""
    shown: bytes = b""
    name: str = ""
    accept: str = ""


class ApiOperation(NamedTuple):
    """One of the API.

    Attributes:
        method: Of HTTP.
        path: With parameters in braces.
        role: Who may.
        summary: One line.
        act: Does it.
        parameters: Which it has.
        body: What a request must hold; None: nothing.
        result: What comes back; None: an object of any form.
        media: Of what comes back.
    """

    method: Literal["GET", "POST"]
    path: str
    role: Role
    summary: str
    act: Callable[[Asked], Awaitable[Answer | Response]]
    parameters: tuple[str, ...] = ()
    body: type[Any] | None = None
    result: Any = None
    media: str = JSON


class _MediaError(Exception):
    """A body is no JSON by its headers; says which and what is allowed."""


_REFUSED = (
    ClientDisconnect,  # nobody reads the answer
    _MediaError,
    UserError,
    OverflowError,
    OSError,  # TimeoutError is one
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)


class BodyLimits(NamedTuple):
    """What a request may hold.

    Attributes:
        max_bytes: Of its body.
        seconds: In which that has to come.
    """

    max_bytes: int
    seconds: float


class HttpApi:
    """Answers requests by a table of operations.

    Args:
        operations: The table.
        parameters: That its operations name.
        limits: Of requests.
        refuse: See there.
        title: Of its document.
    """

    def __init__(
        self,
        operations: Sequence[ApiOperation],
        *,
        parameters: Parameters,
        limits: BodyLimits,
        refuse: Refuse,
        title: str,
    ) -> None:
        self._operations = operations
        self._parameters = parameters
        self._limits = limits
        self._refuse = refuse
        self._title = title

    def routes(self, guarded: Guard) -> list[Route]:
        """All of it, and its document."""
        by_path: dict[str, dict[str, Handler]] = {DOCUMENT: {"GET": guarded(None, self._document)}}
        for each in self._operations:
            handlers = by_path.setdefault(each.path, {})
            handlers[each.method] = guarded(each.role, self._handler(each))
        return [Route(path, _any_of(found), methods=[*found]) for path, found in by_path.items()]

    def _handler(self, operation: ApiOperation) -> Handler:
        async def handler(request: Request) -> Response:
            try:
                answer = await operation.act(await self._asked(request, operation))
            except _REFUSED as error:
                return self._refuse(*self._why(error))
            if isinstance(answer, Response):
                return answer
            content = msgspec.json.encode(answer.content)
            return Response(content, answer.status, headers=answer.headers, media_type=JSON)

        return handler

    def _why(self, error: Exception) -> tuple[int, str]:
        """Status and words for what was raised."""
        match error:
            case UserError():
                return 409, str(error)
            case _MediaError():
                return 415, str(error)
            case OverflowError():
                return 413, f"the body must have at most {self._limits.max_bytes} bytes; send less"
            case TimeoutError():
                return 408, f"the body must be complete within {self._limits.seconds:g} s"
            case OSError():
                return 503, f"the disk does not take it: {error.strerror}; ask again later"
        return 400, f"{error}; see GET {DOCUMENT}"

    async def _asked(self, request: Request, operation: ApiOperation) -> Asked:
        """What a request wants.

        Raises:
            msgspec.DecodeError: It is not understood.
            _MediaError: It is no JSON by its headers.
            OverflowError: It is too long.
            TimeoutError: It is not complete in time.
        """
        content, body = b"", None
        if operation.body is not None:  # who has closed his half is still told what he has asked
            _check_media(request.headers)
            content = await asyncio.wait_for(
                _content(request, self._limits.max_bytes), self._limits.seconds
            )
            body = _decoded(content or b"{}", operation.body)
        query = self._query(request, operation)
        token_shown = shown_token(request.headers.get("authorization", ""))
        token = hashlib.sha256(token_shown).hexdigest()[:8]
        name = operation.path.rpartition("/")[2]
        accept = request.headers.get("accept", "")
        path = dict(request.path_params)
        return Asked(path, query, body, len(content), token, token_shown, name, accept)

    def _query(self, request: Request, operation: ApiOperation) -> dict[str, str]:
        """Its query, checked; a text such as metrics is told whatever a scraper adds.

        Raises:
            msgspec.ValidationError: Something in it is missing, wrong, twice there or in vain.
        """
        described = {
            name: self._parameters[name]
            for name in operation.parameters
            if self._parameters[name]["in"] == "query"
        }
        query: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if operation.media == TEXT:
                continue
            if name not in described:
                known = ", ".join(described) or "none"
                raise msgspec.ValidationError(f"{shown(name)} is no parameter; there are: {known}")
            if name in query:
                raise msgspec.ValidationError(f"`{name}` must be given once")
            query[name] = value
        for name, each in described.items():
            _check(name, query.get(name), each)
        return query

    async def _document(self, _request: Request) -> Response:
        return JSONResponse(openapi(self._operations, self._parameters, self._title))


def _any_of(handlers: Mapping[str, Handler]) -> Handler:
    """A handler of all methods of a path, so that a refusal of another one names them all."""

    async def handler(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return handler


def _decoded(content: bytes, kind: type[Any]) -> Any:  # noqa: ANN401 - of that type
    """A body by its schema; to JSON 5.0 is an integer, too.

    Raises:
        msgspec.DecodeError: It is none.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        return msgspec.convert(_with_integers(msgspec.json.decode(content)), kind)


def _with_integers(found: Any) -> Any:  # noqa: ANN401 - of JSON's kinds
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if isinstance(found, list):
        return list(map(_with_integers, found))
    if isinstance(found, dict):
        return {name: _with_integers(value) for name, value in found.items()}
    return found


def _check_media(headers: Headers) -> None:
    """See that a body is JSON; `curl -d` calls everything a form.

    Raises:
        _MediaError: It is something else.
    """
    kind = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind not in (JSON, FORM):
        raise _MediaError(f"Content-Type {shown(kind)}: must be {JSON}")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise _MediaError(f"Content-Encoding {shown(encoding)}: must be none: send it as it is")


async def _content(request: Request, max_bytes: int) -> bytes:
    """A body.

    Raises:
        OverflowError: It is too long; the rest is read first, as who still writes reads no answer.
    """
    content, size = b"", 0
    async for piece in request.stream():
        size += len(piece)
        if size <= max_bytes:
            content += piece
        elif size > max_bytes + MAX_UNREAD_BYTES:
            break
    if size > max_bytes:
        raise OverflowError
    return content


def _check(name: str, value: str | None, described: Mapping[str, Any]) -> None:
    """Check a parameter of a query by how it is described.

    Raises:
        msgspec.ValidationError: It is missing, or another one.
    """
    schema = described["schema"]
    if value is None:
        if described.get("required"):
            raise msgspec.ValidationError(f"`{name}` is missing")
        return
    if value not in schema.get("enum", (value,)):
        raise msgspec.ValidationError(f"`{name}` must be one of {', '.join(schema['enum'])}")
    if schema["type"] == "string":
        size = schema.get("maxLength", math.inf)
        if len(value) > size:
            raise msgspec.ValidationError(f"`{name}` must have at most {size} characters")
        if re.search(schema.get("pattern", ""), value) is None:
            raise msgspec.ValidationError(f"`{name}` {shown(value)}: {described['description']}")
        return
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    try:
        number = msgspec.convert(value, float, strict=False)
    except msgspec.ValidationError:
        number = math.nan
    if schema["type"] == "integer" and whole_number(value) is None:
        number = math.nan  # digits alone: nobody has to know what 1e2 is
    if not (math.isfinite(number) and least <= number <= most):
        raise msgspec.ValidationError(
            f"`{name}` must be of type {schema['type']}, from {least} to {most}"
        )


def openapi(
    operations: Sequence[ApiOperation], parameters: Parameters, title: str
) -> dict[str, Any]:
    """The document of an API.

    Args:
        operations: All there are.
        parameters: That they name.
        title: For people.
    """
    types = [RequestProblem, *(t for op in operations for t in (op.body, op.result) if t)]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(
        unique, ref_template="#/components/schemas/{name}"
    )
    known = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(
            operation, known, parameters
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(
    operation: ApiOperation, known: Mapping[Any, Any], parameters: Parameters
) -> dict[str, Any]:
    result = {"type": "object"} if operation.media == JSON else {"type": "string"}
    result = known.get(operation.result, result)
    problem = {"application/json": {"schema": known[RequestProblem]}}
    responses: dict[str, Any] = {
        "200": {"description": "Done.", "content": {operation.media: {"schema": result}}}
    }
    responses |= {
        code: {"description": words, "content": problem} for code, words in _REFUSALS.items()
    }
    found: dict[str, Any] = {
        "summary": operation.summary,
        "description": f"For the role `{operation.role}`.",
        "operationId": _identifier(operation),
        "security": [{"token": []}],
        "parameters": [{"name": name, **parameters[name]} for name in operation.parameters],
        "responses": responses,
    }
    if operation.body is not None:
        fields = msgspec.structs.fields(operation.body)
        found["requestBody"] = {
            "required": any(field.required for field in fields),
            "content": {JSON: {"schema": known[operation.body]}},
        }
    return found


def _identifier(operation: ApiOperation) -> str:
    words = operation.path.replace("{", "").replace("}", "").split("/")
    return "_".join([operation.method.lower(), *filter(None, words[1:])])
