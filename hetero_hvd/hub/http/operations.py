"""The parameters of the hub's operations."""

from __future__ import annotations

import msgspec

from hetero_hvd.hub.http.bodies import MAX_POINTS, DeviceName, FigureName, Seconds
from hetero_hvd.run.web.operations import Parameters

DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
PARAMETERS: Parameters = {
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
    "of node": {
        "name": "node",
        "in": "query",
        "required": True,
        "schema": {"type": "string", "maxLength": 64},
    },
    "figure": {"in": "query", "required": True, "schema": msgspec.json.schema(FigureName)},
    "device": {"in": "query", "schema": msgspec.json.schema(DeviceName)},
    "from": {"in": "query", "required": True, "schema": msgspec.json.schema(Seconds)},
    "to": {"in": "query", "required": True, "schema": msgspec.json.schema(Seconds)},
    "points": {
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_POINTS, "default": 1000},
    },
}
