"""The parts of an optimizer's state that this worker holds, and their update.

Parameters lie one after the other in the order of the optimizer's groups, each from a whole block
on. A slice is some blocks of one parameter: its tensor is a view of the parameter, so that the
update of a slice is one of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.nn import Parameter

from hetero_hvd.core.shards.cut import Span
from hetero_hvd.errors import UserError
from hetero_hvd.worker.accelerator import is_accelerator
from hetero_hvd.worker.shards.element_wise import (
    BLOCK_ELEMENTS,
    ElementState,
    State,
    options_of,
    state_part,
    twin_of,
)
from hetero_hvd.worker.shards.whole_state import part_of

HALVES = torch.float16, torch.bfloat16

LATER_BYTES = 12 * 2**20
"""What a process on the host takes from its first step on beside all that is counted: threads of
autograd and what Python imports late (measured, with torch 2.13)."""


class ShardPiece(NamedTuple):
    """Blocks of one parameter.

    Attributes:
        number: Of the parameter.
        span: Counted from the first block of all.
    """

    number: int
    span: Span


class Layout:
    """Where each parameter lies among the blocks.

    Args:
        optimizer: The script's.

    Attributes:
        parameters: In order.
        num_blocks: Of all.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.parameters: list[Parameter] = [
            each for group in optimizer.param_groups for each in group["params"]
        ]
        sizes = [-(-each.numel() // BLOCK_ELEMENTS) for each in self.parameters]
        self._starts = [0, *accumulate(sizes)]
        self.num_blocks = self._starts[-1]

    @property
    def kind(self) -> str:
        """Of the device where the parameters are."""
        return self.parameters[0].device.type

    @property
    def block_bytes(self) -> int:
        """Of the parameters of a block, at most."""
        return BLOCK_ELEMENTS * max((each.element_size() for each in self.parameters), default=4)

    def step_bytes(self, num_told: int, bucket_bytes: int) -> int:
        """What a step takes of the memory beside parameters and state, without its passes.

        That is the gradients; of those of half precision three buckets in float32, as they travel
        (see `Reducer`): two, and what the next is made of; and, on the host, the parameters that a
        worker gives and gets, and what a process takes later.

        Args:
            num_told: Blocks of parameters that travel at once.
            bucket_bytes: Of gradients that travel.
        """
        halves = [4 * each.numel() for each in self.parameters if each.dtype in HALVES]
        widened = min(sum(halves), 3 * (bucket_bytes // 2 + max(halves, default=0)))
        on_host = [each for each in self.parameters if not is_accelerator(each.device)]
        told = 2 * num_told * BLOCK_ELEMENTS * max((e.element_size() for e in on_host), default=0)
        later = told + LATER_BYTES if on_host else 0
        return sum(each.nbytes for each in self.parameters) + widened + later

    def pieces(self, span: Span) -> Iterator[ShardPiece]:
        """The blocks of a span, parameter by parameter."""
        for number, (start, stop) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            part = _common(Span(start, stop), span)
            if part.length > 0:
                yield ShardPiece(number, part)

    def elements(self, piece: ShardPiece) -> Span:
        """Which elements of its parameter they are."""
        first, end = self._starts[piece.number], self.parameters[piece.number].numel()
        start, stop = ((block - first) * BLOCK_ELEMENTS for block in piece.span)
        return Span(start, min(stop, end))

    def view(self, piece: ShardPiece) -> torch.Tensor:
        """Of these elements of the parameter.

        Raises:
            UserError: The script has given the parameter another form.
        """
        parameter = self.parameters[piece.number].detach()
        if not parameter.is_contiguous():
            raise UserError(
                f"shard_optimizer: a parameter of {tuple(parameter.shape)} is not contiguous any "
                "more: only such can be cut"
            )
        return parameter.view(-1)[slice(*self.elements(piece))]

    def bytes_of(self, spans: Iterable[Span]) -> torch.Tensor:
        """Of the parameters in some spans, on the host, 1-D uint8."""
        views = [self.view(piece) for span in spans for piece in self.pieces(span)]
        rows = [view.view(torch.uint8).cpu() for view in views if view.numel()]
        return torch.cat(rows) if rows else torch.empty(0, dtype=torch.uint8)

    def put_bytes(self, spans: Iterable[Span], rows: torch.Tensor) -> None:
        """The inverse."""
        at = 0
        for span in spans:
            for piece in self.pieces(span):
                view = self.view(piece)
                put_bytes(view, rows[at : at + view.nbytes])
                at += view.nbytes


class Slices:
    """What this worker holds.

    Args:
        optimizer: The script's: its class and the options of its groups, as they are in each step.
        layout: Of its parameters.
        proven: What it keeps.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, layout: Layout, proven: ElementState
    ) -> None:
        self._num_threads = 1 if proven.is_serial else None
        self._optimizer = optimizer
        self._names = proven.names
        self._known = proven.known
        self._layout = layout
        self._group_of = [
            number for number, group in enumerate(optimizer.param_groups) for _ in group["params"]
        ]
        self._twin = twin_of(optimizer, [[] for _ in optimizer.param_groups])
        self._held: dict[ShardPiece, Parameter] = {}

    def spans(self) -> list[Span]:
        """What is held, neighbours as one."""
        found: list[Span] = []
        for span in sorted(piece.span for piece in self._held):
            if found and found[-1].stop == span.start:
                found[-1] = Span(found[-1].start, span.stop)
            else:
                found.append(span)
        return found

    @property
    def num_bytes(self) -> int:
        """What the state that is held takes of the memory of the parameters' device."""
        return bytes_on(self._layout.kind, self._twin.state.values())

    @property
    def num_blocks(self) -> int:
        """That are held."""
        return sum(piece.span.length for piece in self._held)

    def step(self) -> None:
        """The update of what is held, with the gradients and options that there are just now."""
        self._follow()
        for piece, own in self._held.items():
            parameter = self._layout.parameters[piece.number]
            own.data = self._layout.view(piece)
            grad = parameter.grad
            own.grad = None
            if grad is not None and parameter.requires_grad:
                own.grad = grad.reshape(-1)[slice(*self._layout.elements(piece))]
        with threads(self._num_threads):
            self._twin.step()
        for own in self._held.values():
            own.grad = None
            self._check_kept(self._twin.state.get(own, {}))

    def _check_kept(self, state: State) -> None:
        """See that it keeps no more than was proven: else nobody knows how that is cut.

        Raises:
            UserError: Some option of the optimizer is another one than then.
        """
        if more := state.keys() - self._known:
            raise UserError(
                f"shard_optimizer: the optimizer keeps {', '.join(sorted(more))} since its options "
                "were changed: give it options for which it does so before the trainer is made"
            )

    def _follow(self) -> None:
        """Take over what a scheduler or a script has set.

        Raises:
            UserError: The optimizer has other parameters than at the begin, or was given a state.
        """
        groups, own = self._optimizer.param_groups, self._twin.param_groups
        now = [each for group in groups for each in group["params"]]
        if len(groups) != len(own) or list(map(id, now)) != list(map(id, self._layout.parameters)):
            raise UserError(
                "shard_optimizer: parameters were added to the optimizer, or taken from it, while "
                "it was trained: give it all of them before the trainer is made"
            )
        if any(self._optimizer.state.values()):
            raise UserError(
                "shard_optimizer: a state was loaded into the optimizer while it was trained, or "
                "the script has stepped it: load it before trainer.epochs(), and leave the steps "
                "to the trainer"
            )
        for group, twin in zip(groups, own, strict=True):
            twin.update(options_of(group))

    def take(self, piece: ShardPiece, state: State) -> None:
        """Hold one more piece from now on, with its state; tensors become this worker's own."""
        # What is held twice would be updated twice.
        assert all(_common(each.span, piece.span).length <= 0 for each in self._held)  # noqa: S101
        self._check_kept(state)
        own = Parameter(self._layout.view(piece))
        self._held[piece] = own
        number = self._group_of[piece.number]
        group = self._twin.param_groups[number]
        group["params"].append(own)
        if state:
            on_device = bool(group.get("capturable")) or bool(group.get("fused"))
            self._twin.state[own] = {
                name: value.to(own.device)
                if isinstance(value, torch.Tensor) and (name in self._names or on_device)
                else value
                for name, value in state.items()
            }

    def give(self, span: Span) -> list[tuple[ShardPiece, State]]:
        """Copies of the state of some blocks, all of which are held."""
        found = []
        for piece, own in self._held.items():
            part = _common(piece.span, span)
            if part.length > 0:
                wanted = ShardPiece(piece.number, part)
                found.append((wanted, self._part_of(piece, own, wanted)))
        return sorted(found, key=lambda each: each[0])

    def part(self, spans: Iterable[Span], version: tuple[int, int]) -> dict[str, Any]:
        """The state of some spans, for a checkpoint; see `whole_state`."""
        parameters, elements = self._layout.parameters, self._layout.elements
        pieces = (
            (piece.number, parameters[piece.number].shape, elements(piece), state)
            for span in spans
            for piece, state in self.give(span)
        )
        return part_of(version, self._names, pieces)

    def joined(self, span: Span) -> dict[int, State]:
        """The same, each parameter's in one piece, in however many it is held."""
        found: dict[int, State] = {}
        for piece, state in self.give(span):
            into = found.setdefault(piece.number, {})
            for name, value in state.items():
                is_more = name in self._names and name in into
                into[name] = torch.cat([into[name], value]) if is_more else value
        return found

    def put(self, piece: ShardPiece, state: State) -> None:
        """Another holder's state in the place of what is held of these blocks."""
        start = self._layout.elements(piece).start
        for held, own in self._held.items():
            part = _common(held.span, piece.span)
            if held.number != piece.number or part.length <= 0:
                continue
            first = self._layout.elements(held).start
            begin, end = self._layout.elements(ShardPiece(piece.number, part))
            kept = self._twin.state[own]
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    is_whole = name not in self._names
                    mine = kept[name] if is_whole else kept[name][begin - first : end - first]
                    mine.copy_(value if is_whole else value[begin - start : end - start])
                else:
                    kept[name] = value

    def keep_only(self, spans: Iterable[Span]) -> None:
        """Let go of what lies beside these."""
        wanted = list(spans)
        before, self._held = self._held, {}
        states = self._twin.state
        for group in self._twin.param_groups:
            group["params"] = []
        kept: list[tuple[ShardPiece, Parameter, ShardPiece]] = []
        for piece, own in before.items():
            for span in wanted:
                common = _common(piece.span, span)
                if common.length > 0:
                    kept.append((piece, own, ShardPiece(piece.number, common)))
        for piece, own, part in kept:
            if part == piece:
                self._held[piece] = own
                self._twin.param_groups[self._group_of[piece.number]]["params"].append(own)
            else:
                self.take(part, self._part_of(piece, own, part))
        for own in set(before.values()) - set(self._held.values()):
            states.pop(own, None)

    def _part_of(self, piece: ShardPiece, own: Parameter, wanted: ShardPiece) -> State:
        first = self._layout.elements(piece).start
        start, stop = (each - first for each in self._layout.elements(wanted))
        return state_part(self._twin.state.get(own, {}), self._names, start, stop)


class Whole:
    """The state of all parameters, in their shapes, as the optimizer itself would have it.

    Args:
        layout: Of the parameters.
        names: Of the entries of its state that have a number for each element.
        states: Number of a parameter to its state.
    """

    def __init__(
        self, layout: Layout, names: frozenset[str], states: dict[int, State] | None = None
    ) -> None:
        self._layout = layout
        self._names = names
        self.states = {} if states is None else states

    @classmethod
    def of(cls, layout: Layout, proven: ElementState, state: Mapping[str, Any]) -> Whole:
        """All of a state dict's; its numbers as the optimizer itself keeps them.

        Raises:
            UserError: It is of other parameters.
        """
        keys = [key for group in state["param_groups"] for key in group["params"]]
        kept = {number: state["state"].get(key, {}) for number, key in enumerate(keys)}
        states = {
            number: {
                name: _fitting(value, layout.parameters[number], name, proven)
                for name, value in entries.items()
            }
            for number, entries in kept.items()
            if entries
        }
        return cls(layout, proven.names, states)

    def give(self, span: Span) -> list[tuple[ShardPiece, State]]:
        """Copies of the state of some blocks."""
        return [
            (
                piece,
                state_part(
                    self.states.get(piece.number, {}), self._names, *self._layout.elements(piece)
                ),
            )
            for piece in self._layout.pieces(span)
        ]

    @property
    def num_bytes(self) -> int:
        """What it takes of the memory of the parameters' device, which may be another one."""
        return bytes_on(self._layout.kind, self.states.values())

    def hand_over(self, spans: Iterable[Span]) -> Iterator[tuple[ShardPiece, State]]:
        """Copies of the state of these blocks, in order; what is passed by is let go at once."""
        for span in spans:
            for piece in self._layout.pieces(span):
                for number in [each for each in self.states if each < piece.number]:
                    del self.states[number]
                yield from self.give(piece.span)

    def put(self, piece: ShardPiece, state: State) -> None:
        """The inverse: a piece's state in its place, on the host."""
        if not state:
            return
        into = self.states.setdefault(piece.number, {})
        for name, value in state.items():
            if name not in self._names:
                into[name] = value
                continue
            shape = self._layout.parameters[piece.number].shape
            if name not in into:
                into[name] = torch.zeros(shape, dtype=value.dtype)
            into[name].view(-1)[slice(*self._layout.elements(piece))] = value.cpu()


def _fitting(value: Any, parameter: Parameter, name: str, proven: ElementState) -> Any:  # noqa: ANN401 - any state
    """An entry of a state that was loaded, which may be of a training in another precision."""
    if name not in proven.names:
        return value
    if value.numel() != parameter.numel():
        raise UserError(
            f"its {name} has {value.numel()} elements where the parameter has "
            f"{parameter.numel()}: the optimizer has to be given its parameters in the same order"
        )
    return value.to(proven.dtypes.get((name, parameter.dtype), value.dtype))


def bytes_on(kind: str, states: Iterable[State]) -> int:
    """What the tensors of some states take of the memory of such a device."""
    tensors = (each for state in states for each in state.values())
    return sum(
        each.nbytes
        for each in tensors
        if isinstance(each, torch.Tensor) and each.device.type == kind
    )


def _common(one: Span, other: Span) -> Span:
    """The blocks of both; of no length, or less, where there are none."""
    return Span(max(one.start, other.start), min(one.stop, other.stop))


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """So many compute an operation of torch's on the CPU meanwhile; None: as many as before."""
    before = torch.get_num_threads()
    if number in (None, before):
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def put_bytes(view: torch.Tensor, body: torch.Tensor) -> None:
    """Bytes of the host into a 1-D tensor, wherever that is."""
    if is_accelerator(view.device):
        view.view(torch.uint8).copy_(body)
    else:
        view.view(torch.uint8).numpy()[:] = body.numpy()
