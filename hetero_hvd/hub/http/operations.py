"""The operations of the hub's HTTP API, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from hetero_hvd.hub.http.bodies import RequestProblem

Role = Literal["read", "ingest", "operate"]
Parameter = Literal["id", "name", "after", "limit", "node"]
DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
_PARAMETERS: dict[Parameter, dict[str, Any]] = {
    "id": {"in": "path", "required": True, "schema": {"type": "string", "maxLength": 200}},
    "name": {"in": "path", "required": True, "schema": {"type": "string", "maxLength": 64}},
    "after": {"in": "query", "schema": {"type": "string", "maxLength": 100}},
    "limit": {
        "in": "query",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_LIMIT,
            "default": DEFAULT_LIMIT,
        },
    },
    "node": {"in": "query", "schema": {"type": "string", "maxLength": 64}},
}
_REFUSALS = {
    "400": "It is not understood.",
    "401": "The token of the role is not shown.",
    "403": "It comes from a page elsewhere.",
    "404": "There is none.",
    "408": "It was not complete in time.",
    "409": "It cannot be done now, or is in conflict with what is there.",
    "413": "It is too large.",
    "421": "This server goes by another name.",
    "429": "It is more than this source may send; see Retry-After.",
    "503": "The hub's disk does not take it, or too many listen.",
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
    """

    path: dict[str, str]
    query: dict[str, str]
    body: Any
    num_bytes: int
    token: str


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
    """

    method: Literal["GET", "POST"]
    path: str
    role: Role
    summary: str
    act: Callable[[Asked], Awaitable[Answer]]
    parameters: tuple[Parameter, ...] = ()
    body: type[Any] | None = None
    result: type[Any] | None = None


def openapi(operations: Sequence[ApiOperation], version: str) -> dict[str, Any]:
    """The document."""
    types: list[type[Any]] = [
        RequestProblem,
        *(t for op in operations for t in (op.body, op.result) if t is not None),
    ]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(
        unique, ref_template="#/components/schemas/{name}"
    )
    known = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(
            operation, known
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "hetero_hvd hub", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: ApiOperation, known: dict[type[Any], Any]) -> dict[str, Any]:
    result = {"type": "object"} if operation.result is None else known[operation.result]
    problem = {"application/json": {"schema": known[RequestProblem]}}
    responses: dict[str, Any] = {
        "200": {"description": "Done.", "content": {"application/json": {"schema": result}}}
    }
    responses |= {
        code: {"description": words, "content": problem} for code, words in _REFUSALS.items()
    }
    found: dict[str, Any] = {
        "summary": operation.summary,
        "description": f"For the role `{operation.role}`.",
        "operationId": _identifier(operation),
        "security": [{"token": []}],
        "parameters": [{"name": name, **_PARAMETERS[name]} for name in operation.parameters],
        "responses": responses,
    }
    if operation.body is not None:
        content = {"application/json": {"schema": known[operation.body]}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _identifier(operation: ApiOperation) -> str:
    words = operation.path.replace("{", "").replace("}", "").split("/")
    return "_".join([operation.method.lower(), *filter(None, words[2:])])
