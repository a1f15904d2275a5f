"""The parameters of the hub's operations."""

from __future__ import annotations

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
}
