"""The parameters of the hub's operations."""

from __future__ import annotations

from hetero_hvd.core.names import MAX_NAME_CHARACTERS
from hetero_hvd.core.recording.runs import MAX_TEXT
from hetero_hvd.core.recording.timeline import MAX_TIME_SECONDS
from hetero_hvd.hub.http.bodies import DEVICE, FIGURE, MAX_POINTS
from hetero_hvd.run.web.operations import Parameters

DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
_SECONDS = {"type": "number", "minimum": 0, "maximum": MAX_TIME_SECONDS}
PARAMETERS: Parameters = {
    "id": {"in": "path", "required": True, "schema": {"type": "string", "maxLength": MAX_TEXT}},
    "name": {
        "in": "path",
        "required": True,
        "schema": {"type": "string", "maxLength": MAX_NAME_CHARACTERS},
    },
    "job": {
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
    },
    "begin": {"in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 2**53}},
    "after": {"in": "query", "schema": {"type": "string", "maxLength": MAX_TEXT}},
    "limit": {
        "in": "query",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_LIMIT,
            "default": DEFAULT_LIMIT,
        },
    },
    "kind": {"in": "query", "schema": {"type": "string", "enum": ["node", "program"]}},
    "node": {"in": "query", "schema": {"type": "string", "maxLength": MAX_NAME_CHARACTERS}},
    "figure": {
        "in": "query",
        "required": True,
        "description": "must be a letter and then letters, digits and '_', at most 100",
        "schema": {"type": "string", "pattern": FIGURE},
    },
    "device": {
        "in": "query",
        "description": "must be `node`, or the index of a GPU",
        "schema": {"type": "string", "pattern": DEVICE},
    },
    "from": {"in": "query", "required": True, "schema": _SECONDS},
    "to": {"in": "query", "required": True, "schema": _SECONDS},
    "points": {
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_POINTS, "default": 1000},
    },
}
