"""Nodes that answer what a test tells them to."""

import io
import json
from functools import reduce
from types import SimpleNamespace

from hetero_hvd.remote.node_program import NodeProgram

LEFT_OUT = object()
DEEP = json.loads("[" * 900 + "]" * 900)
SHAPES = (
    None,
    True,
    3,
    -1.5,
    float("nan"),
    float("inf"),
    10**400,
    "text",
    "\ud800\x1b[2J\n",
    [],
    [1],
    [None],
    {},
    {"a": 1},
    {"a": DEEP},
)
"""What may come in the place of an answer, or of a part of one."""


def answer_with(monkeypatch, module, answers):
    """Let the nodes that a module asks answer with these.

    Args:
        monkeypatch: Of the test.
        module: That asks them.
        answers: Of all nodes, or by the name of a node: function to answer.
    """

    class Program(NodeProgram):
        """Has no process; the way of an answer is the real one."""

        def __init__(self, node, name, **_):
            self._name = name
            self._answers = answers.get(node.name, answers)
            self._process = SimpleNamespace(stdin=io.BytesIO())
            self._told = None

        def __exit__(self, *_):
            """There is nothing to end."""

        def ask(self, name, *order, **more):
            """As the real one, with the answer that comes then."""
            self._told = json.loads(json.dumps({"answer": self._answers[name]}))
            return super().ask(name, *order, **more)

        def _read(self):
            return self._told

    monkeypatch.setattr(module, "NodeProgram", Program)


def parts_of(answer):
    """Each place in an answer: a function that puts something else there, or leaves it out."""

    def put(path, shape):
        changed = json.loads(json.dumps(answer))
        *way, last = path
        place = reduce(lambda found, key: found[key], way, changed)
        if shape is LEFT_OUT:
            del place[last]
        else:
            place[last] = shape
        return changed

    def paths(told, above=()):
        keys = (
            told if isinstance(told, dict) else range(len(told)) if isinstance(told, list) else ()
        )
        for key in keys:
            yield (*above, key)
            yield from paths(told[key], (*above, key))

    return [(path, lambda shape, path=path: put(path, shape)) for path in paths(answer)]
