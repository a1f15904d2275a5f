"""The proof that an optimizer updates each element by itself, so that its state can be cut."""

from __future__ import annotations

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

PROBE_SIZE = 9 * 129
PROBE_SHAPES = ((PROBE_SIZE,), (PROBE_SIZE,), (9, 129), (3, 3, 129), (3, 3, 43, 3))
"""For a parameter without a dimension, with one, two, …: some optimizers ask how many there are."""

PROBE_CUTS = (0, BLOCK_ELEMENTS, 3 * BLOCK_ELEMENTS, 4 * BLOCK_ELEMENTS, PROBE_SIZE)

SHORT_CUT = 3
"""Elements that fill no vector; divides the probe's size."""

PROBE_STEPS = 3
PROBE_SEED = 1

PROBE_LEAST_LR = 0.01
"""A schedule may begin with 0, with which no step would show anything; this moves a bfloat16."""

PARTS_OF_TORCH = ("state", "param_groups", "step", "defaults", "_opt_called", "_step_count")
HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)

PLAIN = torch.Tensor, int, float, str
"""What a worker takes from another one, and from a checkpoint."""

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
        dtypes: Of the entries that have a number for each element, by name and the parameter's.
        others: Names of the entries that a parameter has as a whole.
        is_serial: Whether one thread has to compute a step: what ends a thread's part of a tensor
            is rounded otherwise, and where that is depends on the cut.
    """

    num_bytes: float
    dtypes: dict[tuple[str, torch.dtype], torch.dtype]
    others: frozenset[str]
    is_serial: bool

    @property
    def names(self) -> frozenset[str]:
        """Of the entries that have a number for each element."""
        return frozenset(name for name, _ in self.dtypes)

    @property
    def known(self) -> frozenset[str]:
        """Of all entries of a parameter's state that were seen in the proof."""
        return self.names | self.others


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
    _check_inner(optimizer)
    groups = [group["params"] for group in optimizer.param_groups]
    _check_parameters([each for group in groups for each in group])
    most, others, is_serial = 0.0, frozenset[str](), False
    dtypes: dict[tuple[str, torch.dtype], torch.dtype] = {}
    for number, group in enumerate(groups):
        try:
            proven = [_proven(optimizer, number, like) for like in _kinds(group)]
        except _Indivisible as why:
            where = f" (group {number})" if len(optimizer.param_groups) > 1 else ""
            raise UserError(
                f"shard_optimizer: {name}{where} {why}: use an optimizer that updates each element "
                "by itself, such as SGD, Adam, AdamW, RMSprop or Adagrad, or train without "
                "shard_optimizer"
            ) from why
        for found in proven:
            most, dtypes = max(most, found.num_bytes), dtypes | found.dtypes
            others, is_serial = others | found.others, is_serial or found.is_serial
    return ElementState(most, dtypes, others, is_serial)


def _kinds(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """A parameter of each precision on each device with each number of dimensions."""
    found = {(each.dtype, each.device, each.dim()): each for each in parameters if each.numel()}
    return list(found.values()) or [torch.zeros(1)]


def _proven(optimizer: torch.optim.Optimizer, number: int, like: torch.Tensor) -> ElementState:
    """What a group has for each element of such a parameter.

    A state of a parameter without a dimension does not show what in it is by elements: it is left
    out, unless the optimizer needs what it has begun.

    Raises:
        _Indivisible: Parts give other bits, or nothing.
    """
    state = dict(optimizer.state.get(like, {}))
    try:
        return _Probe(optimizer, number, like, state if like.dim() else {}).prove()
    except _Indivisible:
        if like.dim() or not state:
            raise
        return _Probe(optimizer, number, like, state).prove()


def _check_inner(optimizer: torch.optim.Optimizer) -> None:
    """Refuse one that steps another one, whose state would stay whole on each worker."""
    for name, value in vars(optimizer).items():
        inner = list(value.values()) if isinstance(value, dict) else value
        for each in inner if isinstance(inner, list | tuple) else (inner,):
            if isinstance(each, torch.optim.Optimizer):
                raise UserError(
                    f"shard_optimizer: {type(optimizer).__name__} has a {type(each).__name__} as "
                    f"its {name}, whose state would be in no part: give the trainer that one, or "
                    "train without shard_optimizer"
                )


def _check_parameters(parameters: Sequence[torch.Tensor]) -> None:
    if len({id(each) for each in parameters}) < len(parameters):
        raise UserError(
            "shard_optimizer: the optimizer has a parameter twice: leave it out once, or train "
            "without shard_optimizer"
        )
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
        like: A parameter of the group, whose precision, device and dimensions are tried.
        state: Of it, as far as it is to be begun with.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, number: int, like: torch.Tensor, state: State
    ) -> None:
        self._optimizer = optimizer
        self._group = optimizer.param_groups[number]
        self._number = number
        self._generator = torch.Generator()
        self._like = like.detach()
        self._state = state
        most = len(PROBE_SHAPES) - 1
        self._shape = (1,) * (like.dim() - most) + PROBE_SHAPES[min(like.dim(), most)]

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
        state = twins[0].state[whole]
        names = self._compared(state, [twins[1].state[part] for part in parts], spans, whole.shape)
        return ElementState(
            num_bytes=sum(state[name].element_size() for name in names),
            dtypes={(name, self._like.dtype): state[name].dtype for name in names},
            others=frozenset(state) - names,
            is_serial=self._is_serial(),
        )

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
        is_idle = "lr" in self._group and torch.equal(whole.reshape(-1), flat)
        if is_idle or (_own_facts(twins[0]), _options(twins[0])) != before:
            raise _Indivisible("keeps something beside its parameters' states")
        return whole, parts, twins

    def _is_serial(self) -> bool:
        """Whether elements at the end of a tensor get other bits than the same ones within it.

        A CPU's threads share a tensor in parts of any length, but for fused updates.
        """
        is_short = self._like.element_size() < torch.float32.itemsize
        if is_accelerator(self._like.device) or not is_short or self._group.get("fused"):
            return False
        whole, parts, _ = self._tried(list(pairwise(range(0, PROBE_SIZE + 1, SHORT_CUT))))
        return not _are_same(whole, parts)

    def _compared(
        self,
        whole: State,
        parts: Sequence[State],
        spans: Sequence[tuple[int, int]],
        shape: torch.Size,
    ) -> frozenset[str]:
        """The entries by elements."""
        if not all(value is None or isinstance(value, PLAIN) for value in whole.values()):
            raise _Indivisible("has a state of other things than tensors and numbers")
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
        values = torch.randn(PROBE_SIZE, generator=self._generator)
        drawn = (values * torch.logspace(-3, 1, PROBE_SIZE)).reshape(self._shape)
        return drawn.to(self._like.dtype).to(self._like.device)

    def _begun(self, parameter: torch.Tensor) -> State:
        """As the optimizer has begun the state of a parameter, if it does so before its step."""
        return {
            name: torch.full_like(
                parameter.detach(), float(value.reshape(-1)[0]), dtype=value.dtype
            )
            if self._is_by_elements(name, value)
            else _copied(value)
            for name, value in self._state.items()
        }

    def _is_by_elements(self, name: str, value: object) -> bool:
        """Of the state begun; where that has no dimension, all but the steps, as torch has it."""
        if self._like.dim():
            return _has_shape(value, self._like.shape)
        return isinstance(value, torch.Tensor) and name != "step"

    def _twin(self, parameters: Sequence[Parameter]) -> torch.optim.Optimizer:
        groups: list[Sequence[Parameter]] = [[] for _ in self._optimizer.param_groups]
        groups[self._number] = parameters
        twin = twin_of(self._optimizer, groups)
        own = twin.param_groups[self._number]
        if "lr" in own and own["lr"] < PROBE_LEAST_LR:
            own["lr"] = own["lr"] * 0 + PROBE_LEAST_LR  # a number stays one, and a tensor, too
        return twin

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
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        are_nan = one.isnan() & other.isnan()  # float16 has no numbers for the eps of some
        return bool(((one == other) | are_nan).all())
    return bool(one == other)
