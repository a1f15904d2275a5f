"""The trainers of one script: which is which, and that one trains at a time.

The reductions of two would mix.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hetero_hvd.errors import UserError


class Turn:
    """A trainer's way through its epochs.

    Args:
        trainer: Whose; it may end by being forgotten, as in a notebook.
    """

    def __init__(self, trainer: object) -> None:
        self.trainer = weakref.ref(trainer)
        self.is_over = False


class _CurrentTrainer(threading.local):
    turn: Turn | None = None
    num_trainers = 0


_current = _CurrentTrainer()
"""In each thread one, as each thread may be a worker of its own."""


def next_number() -> int:
    """Which trainer of the script the one that is being made is, from 1; alike on all workers."""
    _current.num_trainers += 1
    return _current.num_trainers


def check_turn(trainer: object) -> None:
    """Make sure that no other trainer is in the middle of its epochs.

    Raises:
        UserError: One is.
    """
    turn = _current.turn
    other = None if turn is None or turn.is_over else turn.trainer()
    if other is not None and other is not trainer:
        raise UserError(
            "another Trainer is in the middle of its epochs: finish that loop first, or give it "
            "this model, too: trainer.add_model(name, model, optimizer), see docs/guide/trainer.md"
        )


@contextmanager
def turn_of(trainer: object, release: Callable[[], None]) -> Iterator[None]:
    """Around a trainer's epochs, however they end.

    Args:
        trainer: Whose.
        release: Called at the end, unless it has begun its epochs anew meanwhile.
    """
    check_turn(trainer)
    turn = _current.turn = Turn(trainer)
    try:
        yield
    finally:
        turn.is_over = True
        if _current.turn in (turn, None):
            _current.turn = None
            release()
