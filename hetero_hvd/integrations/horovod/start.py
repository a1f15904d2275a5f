"""Hangs a session into the Horovod that a script has imported.

What is changed, and why (Horovod 0.28.1, `horovod/torch/`):
- `elastic/__init__.py`: `_reset` would leave the connections of a broken rendezvous open; we enter
  the next one, and meet its members.
- `common/elastic.py`: the notification manager asks for a port that our driver's rendezvous does
  not give. It is told which state a loop uses: there we listen.
- `optimizer.py`: a step ends where `step` does; what `synchronize` takes is the wait for others.
- `elastic/state.py`: the state of a fresh optimizer is made by a step, which changes the parameters
  (weight decay) that were just received: optimizers come before models.
- `elastic/state.py`: what was received is kept at once. Else a worker that has joined would go
  back to the parameters it began with, and so would all if it had become rank 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NoReturn

import torch
from torch.utils.data import dataloader

from hetero_hvd.errors import UserError
from hetero_hvd.integrations.horovod.session import MIGRATE, PlainSession, check_launch
from hetero_hvd.refusal import refuse_in_one_line
from hetero_hvd.worker.session.launch_settings import read_launch_settings

WAITING = ("mpi_ops", "functions", "sync_batch_norm")
"""Modules of Horovod whose functions wait for operations, by a name of their own for that."""


def begin(hvd: Any) -> None:  # noqa: ANN401 - has no types
    """Make this process a worker of the job; in place of the script's first `hvd.init()`.

    Args:
        hvd: The module `horovod.torch`.
    """
    refuse_in_one_line()
    check_launch(read_launch_settings().launch)
    torch.optim.SGD([torch.zeros(1)], lr=0.0)  # what torch imports with it, nobody is to wait for
    session = PlainSession(hvd)
    _follow_elastic(hvd, session)
    _follow_optimizers(hvd, session)
    _follow_operations(session)
    _follow_torch(session)
    hvd.join = _refuse_join
    hvd.init = partial(_refuse_start, hvd)


def _refuse_join(*_: object, **__: object) -> NoReturn:
    raise UserError(
        "hvd.join() is not possible under hetero-hvd run: give all workers the same number of "
        f"batches, as hvd.elastic.ElasticSampler does: see {MIGRATE}"
    )


def _refuse_start(hvd: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - as above
    """Further calls do nothing, as in Horovod; it cannot be started again by the script."""
    if not hvd.is_initialized():
        raise UserError(
            "hvd.init() after hvd.shutdown() is not possible under hetero-hvd run: call each once, "
            f"and let @hvd.elastic.run start Horovod again where workers change: see {MIGRATE}"
        )


def _follow_elastic(hvd: Any, session: PlainSession) -> None:  # noqa: ANN401 - as above
    """Let Horovod's loop for elastic training reset by us, and hear of the state that it uses."""
    hvd.elastic.shutdown = lambda: None
    hvd.elastic.init = session.rejoin
    sys.modules["horovod.common.elastic"].notification_manager = _States(hvd, session)  # type: ignore[attr-defined]


class _States:
    """In place of Horovod's notification manager, which knows the states of all loops under way."""

    def __init__(self, hvd: Any, session: PlainSession) -> None:  # noqa: ANN401 - as above
        self._hvd = hvd
        self._session = session

    def init(self) -> None:
        """Our driver tells of changes on its own channel."""

    def register_listener(self, state: Any) -> None:  # noqa: ANN401 - as above
        """A loop begins."""
        handlers = getattr(state, "_handlers", None)
        if isinstance(handlers, dict):
            models_last = sorted(
                handlers.items(), key=lambda pair: isinstance(pair[1].value, torch.nn.Module)
            )
            handlers.clear()
            handlers.update(models_last)
        for name, around in self._followed.items():
            if name not in vars(state):
                setattr(state, name, around(state, getattr(state, name)))
        self._session.begin(state)

    def remove_listener(self, state: Any) -> None:  # noqa: ANN401 - as above
        """A loop has ended, by an error or not."""
        for name in self._followed:
            vars(state).pop(name, None)
        self._session.end(sys.exception())

    @property
    def _followed(self) -> dict[str, Callable[[Any, Callable[[], None]], Callable[[], None]]]:
        return {
            "save": self._saves,
            "restore": self._restores,
            "sync": self._syncs,
            "check_host_updates": self._checks,
        }

    def _saves(self, _state: object, save: Callable[[], None]) -> Callable[[], None]:
        def saved() -> None:
            save()
            self._session.committed()

        return saved

    def _restores(self, _state: object, restore: Callable[[], None]) -> Callable[[], None]:
        def restored() -> None:
            self._session.restored(sys.exception())
            restore()

        return restored

    def _syncs(self, state: Any, sync: Callable[[], None]) -> Callable[[], None]:  # noqa: ANN401 - as above
        def synchronized() -> None:
            sync()
            state.save()
            self._session.synchronized()

        return synchronized

    def _checks(self, state: Any, check: Callable[[], None]) -> Callable[[], None]:  # noqa: ANN401 - as above
        elastic = sys.modules["horovod.common.elastic"]

        def checked() -> None:
            self._session.leave_if_due()
            if self._session.is_reset_wanted:
                newer = state._last_updated_timestamp + 1  # noqa: SLF001 - no clock is compared
                state.on_hosts_updated(newer, elastic.HostUpdateResult.mixed)
            try:
                check()
            except elastic.HostsUpdatedInterrupt:
                self._session.interrupted()
                raise

        return checked


def _follow_optimizers(hvd: Any, session: PlainSession) -> None:  # noqa: ANN401 - as above
    """All distributed optimizers that are made from now on have these methods."""
    module: Any = sys.modules[hvd.DistributedOptimizer.__module__]
    clock, wait = session.loop.clock, session.loop.wait

    def following(step: Callable[..., Any], *, is_adasum: bool) -> Callable[..., Any]:
        @wraps(step)
        def followed(self: Any, closure: Any = None) -> Any:  # noqa: ANN401 - as above
            if is_adasum:
                result = wait(lambda: step(self, closure))
            elif self._should_synchronize and not self._synchronized:
                self.synchronize()
                with clock.phase("optimizer"), self.skip_synchronize():
                    result = step(self, closure)
            else:
                with clock.phase("optimizer"):
                    result = step(self, closure)
            session.updated(self)
            return result

        return followed

    average, adasum = module._DistributedOptimizer, module._DistributedAdasumOptimizer  # noqa: SLF001
    average.synchronize = _waiting(average.synchronize, session)
    average.step = following(average.step, is_adasum=False)
    adasum.step = following(adasum.step, is_adasum=True)


def _follow_operations(session: PlainSession) -> None:
    """Whatever else the script does together with the other workers is a wait for them, too."""
    modules = [sys.modules.get(f"horovod.torch.{name}") for name in WAITING]
    for module in filter(None, modules):
        module.synchronize = _waiting(module.synchronize, session)  # type: ignore[attr-defined]


def _waiting(synchronize: Callable[[Any], Any], session: PlainSession) -> Callable[[Any], Any]:
    @wraps(synchronize)
    def waited(handle: Any) -> Any:  # noqa: ANN401 - as above
        return session.loop.wait(lambda: synchronize(handle))

    return waited


def _follow_torch(session: PlainSession) -> None:
    """Where a loop takes its batches, and where it goes backward."""
    iterator, run = dataloader._BaseDataLoaderIter, torch.autograd.backward  # noqa: SLF001 - all have it
    load = iterator.__next__

    @wraps(load)
    def loaded(self: Any) -> Any:  # noqa: ANN401 - whatever the loader yields
        return session.loop.load(lambda: load(self))

    @wraps(run)
    def passed(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on as they are
        session.loop.backward(lambda: run(*arguments, **options))

    iterator.__next__ = loaded  # type: ignore[method-assign]
    torch.autograd.backward = passed
