"""The proof that an optimizer updates each element by itself, so that its state can be cut."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import Parameter

from hetero_hvd.errors import UserError, first_line
from hetero_hvd.worker.accelerator import is_accelerator

BLOCK_ELEMENTS = 256
"""Parameters are cut at multiples of so many elements. A kernel of the CPU takes the last elements
of a tensor, which do not fill a vector, by another path, that rounds otherwise with bfloat16 and in
fused updates: so parts end with them only where the whole does."""

PROBE_SHAPE = (9, 129)
PROBE_CUTS = (0, BLOCK_ELEMENTS, 3 * BLOCK_ELEMENTS, 4 * BLOCK_ELEMENTS, 9 * 129)

SHORT_CUT = 3
"""Elements that fill no vector; divides the probe's size."""

PROBE_STEPS = 3
PROBE_SEED = 1

PARTS_OF_TORCH = ("state", "param_groups", "step", "defaults", "_opt_called", "_step_count")
HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)

State = dict[str, Any]
"""What an optimizer keeps of one parameter."""


def twin_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Sequence[Parameter]]
) -> torch.optim.Optimizer:
    """The same optimizer on other parameters, without state and without hooks.

    Args:
        optimizer: The script's.
        parameters: For each of its groups.
    """
    twin: torch.optim.Optimizer = object.__new__(type(optimizer))
    own = {name: value for name, value in vars(optimizer).items() if name != "step"}
    vars(twin).update(own | {name: OrderedDict() for name in HOOKS if name in own})
    twin.state = defaultdict(dict)
    twin.param_groups = [
        options_of(group) | {"params": list(those)}
        for group, those in zip(optimizer.param_groups, parameters, strict=True)
    ]
    return twin


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """All of a group but its parameters."""
    return {name: value for name, value in group.items() if name != "params"}


class ElementState(NamedTuple):
    """What an optimizer keeps for each element.

    Attributes:
        num_bytes: Of one element, in the group that has most.
        names: Of the entries that have a number for each element; all others are of a parameter.
        is_serial: Whether one thread has to compute a step: what ends a thread's part of a tensor
            is rounded otherwise, and where that is depends on the cut.
    """

    num_bytes: float
    names: frozenset[str]
    is_serial: bool


def state_part(state: Mapping[str, Any], names: frozenset[str], start: int, stop: int) -> State:
    """What of a parameter's state belongs to its elements `start` to `stop`; copies.

    Args:
        state: Of the whole parameter, or of one piece of it.
        names: Of the entries by elements.
        start: The first element.
        stop: The one behind the last.
    """
    return {
        name: _copied(value.reshape(-1)[start:stop] if name in names else value)
        for name, value in state.items()
    }


def _copied(value: Any) -> Any:  # noqa: ANN401 - any state
    return value.clone() if isinstance(value, torch.Tensor) else value


def prove_element_wise(optimizer: torch.optim.Optimizer) -> ElementState:
    """See that parts give the same bits as the whole, on a small tensor for each group.

    Args:
        optimizer: The script's; it is not changed.

    Returns:
        What it keeps for each element.

    Raises:
        UserError: It cannot be cut; says why.
    """
    name = type(optimizer).__name__
    for kind in HOOKS[:2]:
        if getattr(optimizer, kind, None):
            raise UserError(
                f"shard_optimizer: {name} has hooks of its own around its step, which would see no "
                "gradients: remove them, or train without shard_optimizer"
            )
    most, names, is_serial = 0.0, frozenset[str](), False
    for number, group in enumerate(optimizer.param_groups):
        try:
            proven = [_Probe(optimizer, number, like).prove() for like in _kinds(group["params"])]
        except _Indivisible as why:
            where = f" (group {number})" if len(optimizer.param_groups) > 1 else ""
            raise UserError(
                f"shard_optimizer: {name}{where} {why}: use an optimizer that updates each element "
                "by itself, such as SGD, Adam, AdamW, RMSprop or Adagrad, or train without "
                "shard_optimizer"
            ) from why
        for found in proven:
            most, names = max(most, found.num_bytes), names | found.names
            is_serial |= found.is_serial
        _check_parameters(group["params"])
    return ElementState(most, names, is_serial)


def _kinds(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """A parameter of each precision on each device; of a shape, if there is one."""
    found: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
    for each in parameters:
        kind = each.dtype, each.device
        if kind not in found or not found[kind].dim():
            found[kind] = each
    return list(found.values()) or [torch.zeros(1)]


def _check_parameters(parameters: Iterable[torch.Tensor]) -> None:
    for each in parameters:
        if not each.is_contiguous() or not each.is_floating_point():
            raise UserError(
                f"shard_optimizer: a parameter of {tuple(each.shape)} is not contiguous or not of "
                "a real floating-point type: only such can be cut"
            )


class _Indivisible(Exception):  # noqa: N818 - becomes a whole sentence before anybody sees it
    """Why an optimizer cannot be cut, as the rest of a sentence."""


class _Probe:
    """One group's update, of a whole and of its parts.

    Args:
        optimizer: The script's.
        number: Of the group.
        like: A parameter of the group, whose precision and device are tried.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, number: int, like: torch.Tensor) -> None:
        self._optimizer = optimizer
        self._group = optimizer.param_groups[number]
        self._number = number
        self._generator = torch.Generator()
        self._like = like.detach()
        self._state = dict(optimizer.state.get(like, {}))

    def prove(self) -> ElementState:
        """What the group has for each element.

        Raises:
            _Indivisible: Parts give other bits, or nothing.
        """
        whole, parts, twins = self._tried(spans := list(pairwise(PROBE_CUTS)))
        if any(set(twin.state) - {whole, *parts} for twin in twins):
            raise _Indivisible("keeps states that belong to no parameter")
        if not _are_same(whole, parts):
            raise _Indivisible("does not update each element by itself")
        names = self._compared(
            twins[0].state[whole], [twins[1].state[part] for part in parts], spans, whole.shape
        )
        num_bytes = sum(twins[0].state[whole][name].element_size() for name in names)
        return ElementState(num_bytes, names, self._is_serial())

    def _tried(
        self, spans: Sequence[tuple[int, int]]
    ) -> tuple[Parameter, list[Parameter], tuple[torch.optim.Optimizer, torch.optim.Optimizer]]:
        """A tensor and its parts after some steps, and the optimizers of both."""
        self._generator.manual_seed(PROBE_SEED)
        whole = Parameter(self._drawn())
        flat = whole.detach().clone().reshape(-1)
        parts = [Parameter(flat[start:stop].clone()) for start, stop in spans]
        twins = self._twin([whole]), self._twin(parts)
        for parameter in (whole, *parts):
            twins[parameter is not whole].state[parameter] = self._begun(parameter)
        before = _own_facts(twins[0]), _options(twins[0])
        for _ in range(PROBE_STEPS):
            whole.grad = self._drawn()
            for part, (start, stop) in zip(parts, spans, strict=True):
                part.grad = whole.grad.reshape(-1)[start:stop].clone()
            for twin in twins:
                self._step(twin)
        if (_own_facts(twins[0]), _options(twins[0])) != before:
            raise _Indivisible("keeps something beside its parameters' states")
        return whole, parts, twins

    def _is_serial(self) -> bool:
        """Whether elements at the end of a tensor get other bits than the same ones within it.

        A CPU's threads share a tensor in parts of any length, but for fused updates.
        """
        is_short = self._like.element_size() < torch.float32.itemsize
        if is_accelerator(self._like.device) or not is_short or self._group.get("fused"):
            return False
        size = math.prod(PROBE_SHAPE)
        whole, parts, _ = self._tried(list(pairwise(range(0, size + 1, SHORT_CUT))))
        return not _are_same(whole, parts)

    def _compared(
        self,
        whole: State,
        parts: Sequence[State],
        spans: Sequence[tuple[int, int]],
        shape: torch.Size,
    ) -> frozenset[str]:
        """The entries by elements."""
        names = frozenset(name for name, value in whole.items() if _has_shape(value, shape))
        for part, (start, stop) in zip(parts, spans, strict=True):
            wanted = state_part(whole, names, start, stop)
            if wanted.keys() != part.keys() or not all(
                _same(value, part[name]) for name, value in wanted.items()
            ):
                raise _Indivisible("has a state that cannot be cut by elements")
        others = (value for name, value in whole.items() if name not in names)
        if any(isinstance(value, torch.Tensor) and value.numel() > 1 for value in others):
            raise _Indivisible("has a state that is not by elements")
        return names

    def _drawn(self) -> torch.Tensor:
        """Of many sizes, so that what depends on a norm shows."""
        values = torch.randn(PROBE_SHAPE, generator=self._generator)
        sizes = torch.logspace(-3, 1, math.prod(PROBE_SHAPE)).reshape(PROBE_SHAPE)
        return (values * sizes).to(self._like.dtype).to(self._like.device)

    def _begun(self, parameter: torch.Tensor) -> State:
        """As the optimizer has begun the state of a parameter, if it does so before its step."""
        return {
            name: torch.full_like(
                parameter.detach(), float(value.reshape(-1)[0]), dtype=value.dtype
            )
            if _has_shape(value, self._like.shape)
            else _copied(value)
            for name, value in self._state.items()
        }

    def _twin(self, parameters: Sequence[Parameter]) -> torch.optim.Optimizer:
        groups: list[Sequence[Parameter]] = [[] for _ in self._optimizer.param_groups]
        groups[self._number] = parameters
        return twin_of(self._optimizer, groups)

    def _step(self, twin: torch.optim.Optimizer) -> None:
        try:
            twin.step()
        except Exception as error:
            raise _Indivisible(f"cannot take a step of a part ({first_line(error)})") from error


def _own_facts(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What it has as attributes of its own that a step may change."""
    return {
        name: repr(value)
        for name, value in vars(optimizer).items()
        if name not in PARTS_OF_TORCH
        and isinstance(value, (int, float, torch.Tensor, list, dict))
        and not isinstance(value, bool)
    }


def _options(optimizer: torch.optim.Optimizer) -> str:
    """Of its groups, as text: a step must leave them as a scheduler has set them."""
    return repr([options_of(group) for group in optimizer.param_groups])


def _has_shape(value: object, shape: torch.Size) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == shape


def _are_same(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> bool:
    return _same(torch.cat([part.detach() for part in parts]), whole.detach().reshape(-1))


def _same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)
