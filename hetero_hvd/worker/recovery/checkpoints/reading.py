"""A checkpoint as it is found: checked, and put together of its parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from hetero_hvd.errors import UserError, first_line
from hetero_hvd.worker.recovery.checkpoints.registry import store_at
from hetero_hvd.worker.recovery.checkpoints.store import CheckpointPart, CheckpointStore, Manifest
from hetero_hvd.worker.recovery.replica import Unreadable, loaded, unpacked
from hetero_hvd.worker.shards.whole_state import PartsMissing, joined


class Found(NamedTuple):
    """A checkpoint that is complete."""

    store: CheckpointStore
    name: str
    manifest: Manifest

    def __str__(self) -> str:
        """Where it is."""
        return self.store.place(self.name)


def newest_first(store: CheckpointStore) -> list[Found]:
    """Complete checkpoints: those of the last run that wrote into the store come first."""
    return sorted(
        (Found(store, name, manifest) for name, manifest in store.listed()),
        key=lambda one: (one.manifest.run_number, one.manifest.applied_steps, one.name),
        reverse=True,
    )


def state_of(found: Found) -> dict[str, Any]:
    """What a checkpoint holds; the optimizer's state as itself has it, whoever wrote the parts.

    Raises:
        Unreadable: It, or a part, is not what was written, or is gone; or it holds no state.
        OSError: It cannot be read, this time or by this user.
    """
    manifest = found.manifest
    payload = found.store.read(found.name)
    _check(payload, manifest, "it is damaged")
    state = unpacked(payload)
    if not isinstance(state, dict):
        raise Unreadable("it holds no state")
    if manifest.parts:
        try:
            state["optimizer"] |= {"state": joined(_parts_of(found))}
        except PartsMissing as error:
            raise Unreadable(f"its parts do not go together: {error}") from error
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise Unreadable(
                "its parts are in a form that this version does not know, maybe of a later one: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
    return state


def _parts_of(found: Found) -> Iterable[dict[str, Any]]:
    """One after the other, so that two are in memory at most."""
    for part in found.manifest.parts:
        try:
            payload = found.store.read(found.name, part)
        except Unreadable as error:
            raise Unreadable(f"its part {part.name} is gone: {error}") from error
        _check(payload, part, f"its part {part.name} is damaged")
        yield loaded(payload)


def _check(payload: bytes, written: Manifest | CheckpointPart, what: str) -> None:
    """Raises Unreadable if it is not what was written."""
    if len(payload) != written.num_bytes:
        raise Unreadable(f"{what}: {len(payload)} bytes where {written.num_bytes} were written")
    if hashlib.sha256(payload).hexdigest() != written.sha256:
        raise Unreadable(f"{what}: its bytes are not those that were written (SHA-256)")


def read_checkpoint(place: str) -> dict[str, Any]:
    """The state that a checkpoint holds, in this process's memory, whoever wrote its parts.

    Args:
        place: Of one checkpoint, as `hetero-hvd report RUN` names it: a folder, or a URL.

    Returns:
        Name of a part of the training, such as `model` and `optimizer`, to its state dict, on the
        host; `load_state_dict` of a model and an optimizer of their own class takes them.

    Raises:
        UserError: There is none, or it is damaged; says what is wrong.
        OSError: It cannot be read, this time or by this user.
    """
    place = str(place).rstrip("/")
    folder, _, name = place.rpartition("/")
    store = store_at(folder or ".")
    for there, manifest in store.listed():
        if there == name:
            try:
                return state_of(Found(store, name, manifest))
            except Unreadable as error:
                raise UserError(f"{place}: {error}") from error
    from hetero_hvd.run.records.earlier_run import CHECKPOINTS  # noqa: PLC0415 - seldom

    within = (store_at(each) for each in (place, f"{place}/{CHECKPOINTS}"))
    newest = next((found[0] for each in within if (found := newest_first(each))), None)
    what_to_do = (
        "must be one that `hetero-hvd report RUN` names"
        if newest is None
        else f"it holds some, of which {newest} is the newest"
    )
    raise UserError(f"{place}: there is no complete checkpoint: {what_to_do}")
