"""Calls users' functions, and finds out whether what they give can be reproduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.own_generators import OwnGenerators
from hetero_hvd.worker.data.seeding import equal
from hetero_hvd.worker.micro_batch.split import own_memory


class Repeatable:
    """Functions of one kind, such as loss functions.

    Each function is called twice when it comes first, and must give the same again. Later on it
    must not draw from a generator of its own or of the model's.

    Args:
        what: Which kind, for messages.
        model: What they call.
    """

    def __init__(self, what: str, model: torch.nn.Module) -> None:
        self._what = what
        self._model = model
        self._known: dict[Any, OwnGenerators] = {}

    def call(
        self, function: Callable[..., Any], arguments: Sequence[Any], *, put_back: Callable[[], Any]
    ) -> Any:  # noqa: ANN401 - what the function gives
        """What the function gives.

        Args:
            function: The user's.
            arguments: For it.
            put_back: Brings generators and buffers to where they were before a call.

        Raises:
            UserError: What it gives cannot be reproduced; says why.
        """
        key = _identity(function)
        own = self._known.get(key)
        is_new = own is None
        own = own or OwnGenerators({self._what: function, "the model": self._model})
        before = own.states()
        if is_new:
            first = _values(function(*own_memory(tuple(arguments))))
            put_back()
        result = function(*arguments)
        if complaint := own.complaint(before):
            raise UserError(complaint)
        if is_new and not equal(first, _values(result)):
            raise UserError(
                f"reproducible: {self._what} gives another result when it is called again with the "
                "same samples: it or the model keeps state, which depends on how the work is "
                "divided"
            )
        self._known[key] = own
        return result


def _identity(function: Any) -> Any:  # noqa: ANN401 - any callable
    """The same for a function that is defined anew for each step."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__code__", type(function))


def _values(result: Any) -> Any:  # noqa: ANN401 - what the function gave
    if isinstance(result, torch.Tensor):
        return result.detach().clone()
    if isinstance(result, Mapping):
        return {name: _values(value) for name, value in result.items()}
    if isinstance(result, tuple | list):
        return [_values(value) for value in result]
    return result
