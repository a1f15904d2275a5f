"""What makes two workers the same: model, optimizer, scheduler, scaler, position, results."""

from __future__ import annotations

import functools
import hashlib
import io
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from hetero_hvd.errors import UserError, first_line
from hetero_hvd.worker.accelerator import is_accelerator
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.recovery.plain import TensorMap, leaves, put_together, take_apart

CHUNK_ELEMENTS = 2**18
"""Elements of a tensor that make one number of its digest."""

PIECE_ELEMENTS = 2**15
"""Elements in the host's memory that are summed at once: they stay in a cache. NumPy does it in the
calling thread: with torch's several threads each of many small operations would wait for all of
them, which takes seconds in all where other processes use the cores."""

NUM_SIGNS = 4
"""Patterns of signs in a sketch: by one alone, one difference in twelve would look ten times as
small as it is."""

SINGLE_EPS = torch.finfo(torch.float32).eps
"""Numbers of scripts come from tensors of this precision."""

OWN_PARTS = ("model", "trainable", "optimizer", "scheduler", "scaler", "scales", "staleness")
"""Parts that the trainer knows; all others are the script's."""

RESERVED = ("position", "randomness", "kinds")
"""Names that what is kept on disk has for itself."""

OF_DEVICE = ("fused", "foreach", "capturable")
"""Options of an optimizer that say by which kernels it computes, and not what. A script may choose
them by the device, and a worker that took over another one's could not take a step."""

STATEFUL_KINDS = ("optimizer", "scheduler")
"""Parts whose state says nothing to another class, even where it could be loaded."""


class Sketch(msgspec.Struct, frozen=True):
    """What tells how far two tensors are apart that are on two workers.

    The square of the difference of two tensors' sums with random signs is, on average, that of the
    norm of their difference (Johnson and Lindenstrauss, 1984).

    Attributes:
        form: Shape and number format; what differs in it is not comparable.
        eps: Of the format.
        norm: Euclidean.
        sums: With `NUM_SIGNS` fixed random patterns of signs.
    """

    form: str
    eps: float
    norm: float
    sums: tuple[float, ...]


class Unreadable(UserError):  # noqa: N818 - a fact about what was read
    """What was read is no state, or one that holds more than tensors and plain data."""


class Trainable:
    """Which parameters of a model are trained: a joiner was not there when some were frozen.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Name to `requires_grad`."""
        return {name: p.requires_grad for name, p in self._model.named_parameters()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Freeze and unfreeze."""
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(state[name])


def all_parts(
    parts: Mapping[str, Stateful | None], extra_state: Mapping[str, Stateful]
) -> dict[str, Stateful]:
    """The parts that there are, and the script's own.

    Raises:
        UserError: A name is given to two parts.
    """
    taken = sorted({*OWN_PARTS, *RESERVED} & extra_state.keys())
    if taken:
        raise UserError(f"extra_state: {', '.join(taken)}: kept already; use another name")
    return {name: part for name, part in parts.items() if part is not None} | dict(extra_state)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host."""
    return tensor.to("cpu", copy=True)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is on the host with memory of its own; else a copy."""
    if is_accelerator(tensor.device) or tensor.untyped_storage().nbytes() != tensor.nbytes:
        return copied(tensor)
    return tensor.detach()


class Replica:
    """The training state of this worker.

    Args:
        parts: Name to model, optimizer, scheduler, scaler, …; each has a state dict.
    """

    def __init__(self, parts: dict[str, Stateful]) -> None:
        self._parts = parts

    def add(self, name: str, part: Stateful) -> None:
        """One more part.

        Raises:
            UserError: There is one of that name.
        """
        if name in self._parts:
            raise UserError(f"extra_state: {name}: kept already; use another name")
        self._parts[name] = part

    @property
    def names(self) -> tuple[str, ...]:
        """Of its parts, sorted."""
        return tuple(sorted(self._parts))

    def checksum(self) -> str:
        """A digest of every bit of every tensor and number of the state.

        Tensors are summed on their device, so that the cost is a pass over memory and a few numbers
        per tensor to the host: bits read as integers, times fixed random weights (plain sums of
        sign-magnitude floats cancel when values of both signs are shifted alike). Equal replicas
        have equal digests; replicas that differ by training have different ones for all practical
        purposes (it is no cryptographic hash of the tensors).
        """
        digest = hashlib.sha256()
        sums: list[torch.Tensor] = []
        for place, leaf in self._leaves():
            if isinstance(leaf, torch.Tensor):
                digest.update(f"{place}{tuple(leaf.shape)}{leaf.dtype}".encode())
                sums.append(_weighted_bits(leaf).cpu())
            else:
                digest.update(f"{place}{leaf!r}".encode())
        if sums:
            digest.update(torch.cat(sums).numpy().tobytes())
        return digest.hexdigest()[:32]

    def entries(self) -> dict[str, str]:
        """Each entry's own digest, by its place: tells what differs between two replicas."""
        found: dict[str, str] = {}
        for place, leaf in self._leaves():
            facts = f"{found.get(place)}{leaf!r}".encode()
            if isinstance(leaf, torch.Tensor):
                facts = f"{tuple(leaf.shape)}{leaf.dtype}".encode()
                facts += _weighted_bits(leaf).cpu().numpy().tobytes()
            found[place] = hashlib.sha256(facts).hexdigest()[:16]
        return found

    def sketches(self) -> dict[str, list[Sketch]]:
        """What tells rounding from other differences, of each entry with numbers, by its place."""
        found: dict[str, list[Sketch]] = {}
        for place, leaf in self._leaves():
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel():
                found.setdefault(place, []).append(_sketch(leaf))
            elif isinstance(leaf, float):
                sums = (leaf,) * NUM_SIGNS
                found.setdefault(place, []).append(Sketch("a number", SINGLE_EPS, abs(leaf), sums))
        return found

    def prove(self) -> int:
        """See that the state can be loaded back, but for the contents of its tensors.

        Returns:
            Bytes of all its tensors.

        Raises:
            UserError: It cannot; says what is in the way, and where.
        """
        sizes: list[int] = []

        def hollow(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)

        for name, part in self.parted(hollow).items():
            try:
                unpacked(packed(part))
            except Exception as error:
                raise UserError(
                    f"{_title(name).rstrip(' .:')}: its state cannot be loaded back: "
                    f"{first_line(error)}"
                ) from error
        return sum(sizes)

    def snapshot(self, copy: TensorMap = copied) -> dict[str, Any]:
        """A copy of the whole state in the host's memory, which training does not change.

        Args:
            copy: Copies a tensor to the host.
        """
        return self.parted(copy) | {"kinds": self._kinds()}

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the state, where they are, tied ones once."""
        found: list[torch.Tensor] = []
        self.parted(found.append)
        return found

    def parted(self, tensors: TensorMap) -> dict[str, Any]:
        """The state as plain data; each tensor goes through `tensors`, tied ones once."""
        known: dict[Any, tuple[torch.Tensor, Any]] = {}

        def once(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - what `tensors` gives
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
            if not tensor.numel():
                return tensors(tensor)
            if key not in known:  # the tensor is kept, so that nothing else gets its address
                known[key] = (tensor, tensors(tensor))
            return known[key][1]

        return {name: self._plain(name, once) for name in self._parts}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another worker of this job: the same parts.

        Raises:
            UserError: It does not fit this worker's model.
        """
        for name, part in self._parts.items():
            _load(name, part, state, "the state of another worker does not fit this one")

    def resume(self, state: Mapping[str, Any]) -> list[str]:
        """Take over a state that was kept on disk, maybe by a script with other parts.

        A part that the state does not have begins anew: a scheduler with the learning rates that it
        has given the optimizer. What this script does not have is left out.

        Returns:
            What was added and left out, in words.

        Raises:
            UserError: A part is of another kind now, or its state does not fit.
        """
        for name, kind in state.get("kinds", {}).items():
            now = self._kinds().get(name, kind)
            if now != kind:
                raise UserError(
                    f"the {name} was {kind}, now it is {now}: go on with {kind}; or begin a new run"
                    ", with the model's weights alone: torch.load('…/state.pt')['model']"
                )
        added = [name for name in self._parts if name not in state]
        missing = [n for n in state if n not in self._parts and n not in RESERVED]
        rates = _settings(self._parts.get("optimizer")) if "scheduler" in added else []
        for name, part in self._parts.items():
            if name in state:
                _load(name, part, state, "it does not fit this script")
        for group, kept in zip(_groups(self._parts.get("optimizer")), rates, strict=False):
            group |= {name: value for name, value in kept.items() if name not in group}
            group["lr"] = kept["lr"]
        words = [f"it has no {_title(name).rstrip(' .:')}, which begins anew" for name in added]
        return words + [f"its {_title(name).rstrip(' .:')} is left out" for name in missing]

    def _kinds(self) -> dict[str, str]:
        names = [name for name in self._parts if name.rpartition(".")[2] in STATEFUL_KINDS]
        found = {name: _kind(self._parts[name]) for name in names}
        return {name: f"{cls.__module__}.{cls.__qualname__}" for name, cls in found.items()}

    def _plain(self, name: str, tensors: TensorMap) -> Any:  # noqa: ANN401 - plain data
        place = _title(name)
        try:
            return take_apart(self._parts[name].state_dict(), place.rstrip("."), tensors)
        except RecursionError as error:
            raise UserError(f"{place.rstrip(' .:')}: its state holds itself") from error

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        for name, part in self._parts.items():
            if getattr(part, "may_differ", False):
                continue
            plain = _common(self._plain(name, lambda tensor: tensor))
            yield from leaves(plain, _title(name).rstrip("."))


def packed(state: Any) -> bytes:  # noqa: ANN401 - plain data
    """What `take_apart` gave, as bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def loaded(payload: bytes) -> Any:  # noqa: ANN401 - plain data
    """The inverse of `packed`. Nothing is unpickled that could run.

    Raises:
        Unreadable: It holds more than tensors and plain data, or nothing of the kind.
    """
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except MemoryError:  # says nothing of what is in it
        raise
    except Exception as error:
        raise Unreadable(_reason(error)) from error


def unpacked(payload: bytes) -> Any:  # noqa: ANN401 - any state
    """The inverse of `packed` and `take_apart` together.

    Raises:
        Unreadable: As `loaded`, or it names a class that this script does not have.
    """
    plain = loaded(payload)
    try:
        return put_together(plain)
    except MemoryError:
        raise
    except Exception as error:
        raise Unreadable(f"it holds something unknown: {first_line(error)}") from error


def _reason(error: Exception) -> str:
    """What is wrong, without torch's advice to load what could run."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    if named:
        return f"it holds {named[1]}, which is more than tensors and plain data"
    return "it is nothing that torch can read"


def _load(name: str, part: Stateful, state: Mapping[str, Any], why: str) -> None:
    try:
        part.load_state_dict(for_own_device(part, state[name]))
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        facts = "; ".join(lines[:3]) or type(error).__name__
        raise UserError(f"{why}: {_title(name).rstrip(' .:')}: {facts}") from error


def _common(plain: Any) -> Any:  # noqa: ANN401 - plain data
    """The state of an optimizer without what its own device decides; anything else as it is."""
    if not isinstance(plain, dict) or not isinstance(plain.get("param_groups"), list):
        return plain
    groups = [
        {name: value for name, value in group.items() if name not in OF_DEVICE}
        for group in plain["param_groups"]
    ]
    return plain | {"param_groups": groups}


def for_own_device(part: Stateful, state: Any) -> Any:  # noqa: ANN401 - any state
    """Another worker's state of an optimizer, whose steps are computed as it was made to here."""
    own, given = list(_groups(part)), _common(state)
    if given is state or len(own) != len(given["param_groups"]):
        return state
    kept = [{name: group[name] for name in OF_DEVICE if name in group} for group in own]
    pairs = zip(given["param_groups"], kept, strict=True)
    return given | {"param_groups": [group | options for group, options in pairs]}


def _kind(part: Stateful) -> type:
    """Whose state it is; the optimizer's own, where that lies in parts on the workers."""
    found: object = getattr(part, "kind", None)
    return found if isinstance(found, type) else type(part)


def _title(name: str) -> str:
    """How a place in this part begins."""
    return f"{name}." if name in (*OWN_PARTS, *RESERVED) else f"extra_state[{name!r}]: "


def _groups(optimizer: Stateful | None) -> Collection[dict[str, Any]]:
    return getattr(optimizer, "param_groups", ())


def _settings(optimizer: Stateful | None) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in _groups(optimizer)
    ]


def _weighted_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Weighted sums of the bits, one for each `CHUNK_ELEMENTS`; int64."""
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    integers = {1: torch.uint8, 2: torch.int16}.get(flat.element_size(), torch.int32)
    flat = flat.view(integers)
    if not is_accelerator(flat.device):
        return _weighted_on_host(flat.cpu().numpy())
    sums = []
    for piece in flat.split(CHUNK_ELEMENTS):
        bits = piece.to(torch.int32)
        bits = (bits ^ (bits >> 15)).mul_(_weights(flat.device)[: len(bits)])
        sums.append(bits.sum(dtype=torch.int64))
    return torch.stack(sums)


def _sketch(tensor: torch.Tensor) -> Sketch:
    flat = tensor.detach().contiguous().flatten()
    weights = _weights(flat.device)
    squares, *sums = [0.0] * (1 + NUM_SIGNS)
    for piece in flat.split(CHUNK_ELEMENTS):
        exact = piece if piece.dtype is torch.float64 else piece.float()
        squares += float(exact.square().sum())
        for number in range(NUM_SIGNS):
            signs = ((weights[: len(piece)] >> (8 + number)) & 1).mul(2).sub(1)
            sums[number] += float((exact * signs).sum())
    form = f"{tuple(tensor.shape)}{tensor.dtype}"
    return Sketch(form, torch.finfo(tensor.dtype).eps, squares**0.5, tuple(sums))


def _weighted_on_host(flat: np.ndarray[Any, Any]) -> torch.Tensor:
    weights = _weights(torch.device("cpu")).numpy()
    sums = torch.zeros(max(1, -(-len(flat) // CHUNK_ELEMENTS)), dtype=torch.int64)
    found, room = sums.numpy(), np.empty(PIECE_ELEMENTS, np.int32)
    for start in range(0, len(flat), PIECE_ELEMENTS):
        bits = flat[start : start + PIECE_ELEMENTS].astype(np.int32, copy=False)
        mixed, first = room[: len(bits)], start % CHUNK_ELEMENTS
        np.right_shift(bits, 15, out=mixed)
        np.bitwise_xor(mixed, bits, out=mixed)  # lets the sign reach the low bits
        np.multiply(mixed, weights[first : first + len(bits)], out=mixed)
        found[start // CHUNK_ELEMENTS] += mixed.sum(dtype=np.int64)
    return sums


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    """Odd 32-bit integers without a pattern: the finaliser of SplitMix64 (Steele et al., 2014)."""
    mixed = torch.arange(1, CHUNK_ELEMENTS + 1) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return ((mixed >> 31) | 1).to(torch.int32).to(device)
