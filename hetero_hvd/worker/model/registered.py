"""What a model has registered: a script may change it between two steps, alike on all workers.

Layers are added, replaced, pruned, adapted and frozen while training goes on, and forward passes
put other tensors in the place of buffers. So the model is asked at each step.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.session.launch_settings import read_launch_settings

DIGEST_BITS = 12
"""So that sums over 4096 workers are exact in float32."""


Digest = tuple[float, float]

NOT_KEPT = "_non_persistent_buffers_set"
"""Where a module has the names of its buffers that are no part of its state."""

_KIND = attrgetter("shape", "dtype", "requires_grad", "device")
_REGISTERS = itemgetter("_modules", "_parameters", "_buffers")
_VERSION = attrgetter("_version")
"""How often a tensor was written to, which torch documents for functions of one's own."""


class ModelSlot:
    """Where a buffer is registered; the forward pass may put another tensor there.

    Attributes:
        name: Of the buffer in the model.
        is_persistent: Whether it is part of the model's state.
    """

    def __init__(self, name: str, module: nn.Module, key: str) -> None:
        self._module = module
        self._key = key
        self.name = name
        self.is_persistent = key not in getattr(module, NOT_KEPT, ())

    def get(self) -> torch.Tensor | None:
        """The tensor that is there now; None: there is none."""
        buffers = self._module.__dict__.get("_buffers")
        found = buffers.get(self._key) if type(buffers) is dict else None
        if found is None:  # torch would look there last, after a call of Python
            found = getattr(self._module, self._key, None)
        return found if isinstance(found, torch.Tensor) else None

    def put(self, tensor: torch.Tensor | None) -> None:
        """Register another one."""
        setattr(self._module, self._key, tensor)


class Registered:
    """The parameters and buffers of a model as of the last `look`.

    Args:
        model: The user's model.
        name: Of the model, where a script trains several in one loop.

    Attributes:
        parameters: By name; a shared one by its first name.
        places: Of the buffers.
    """

    def __init__(self, model: nn.Module, name: str = "") -> None:
        self._model = model
        self._name = name
        self._facts: list[tuple[str, int, tuple[object, ...]]] = []
        self.parameters: dict[str, Parameter] = {}
        self.places: list[ModelSlot] = []
        self._modules: list[dict[str, Any]] = []
        self._objects: list[object] = []
        self._tensors: list[torch.Tensor] = []
        self._signature: tuple[list[object], ...] = ()
        self._code = 0
        self._counted: list[Parameter] = []
        self._versions: list[int] | None = None

    def look(self) -> bool:
        """Ask the model; gives whether something is registered otherwise than before."""
        if self._is_as_seen():
            return False
        parameters: dict[int, tuple[str, Parameter]] = {}
        places: dict[int, ModelSlot] = {}
        for prefix, module in self._model.named_modules():
            path = f"{prefix}." if prefix else ""
            for key, parameter in module._parameters.items():  # noqa: SLF001 - as torch's own walk
                if parameter is not None:
                    parameters.setdefault(id(parameter), (path + key, parameter))
            for key, buffer in module._buffers.items():  # noqa: SLF001
                place = ModelSlot(path + key, module, key)
                places.setdefault(id(place if buffer is None else buffer), place)
        self.places = list(places.values())
        self._remember()
        facts = [(name, id(each), _facts(each)) for name, each in parameters.values()]
        facts += [(p.name, 0, _facts(p.get())) for p in self.places if p.is_persistent]
        if facts == self._facts:
            return False
        self._facts = facts
        self.parameters = dict(parameters.values())
        # Torch does not count what is written to tensors of inference mode.
        self._counted = [each for each in self.parameters.values() if not each.is_inference()]
        self._code = zlib.crc32("\n".join(self._lines()).encode())
        return True

    def _remember(self) -> None:
        """What all that follows from this look depends on, in a form that is soon asked again."""
        modules = list(map(vars, self._model.modules()))
        if not all(isinstance(each.get("_buffers"), dict) for each in modules):
            self._modules = []  # compiled by TorchScript
            return
        self._modules = modules
        registers = self._registers()
        self._objects = [each for register in registers for each in register.values()]
        self._tensors = [each for each in self._objects if isinstance(each, torch.Tensor)]
        self._signature = self._signed(registers)

    def _is_as_seen(self) -> bool:
        """Whether the same objects are in the same places, and tensors are of the same kind."""
        return bool(self._modules) and self._signature == self._signed(self._registers())

    def _registers(self) -> list[dict[str, Any]]:
        """Submodules, parameters and buffers of each module that was seen."""
        return list(chain.from_iterable(map(_REGISTERS, self._modules)))

    def _signed(self, registers: list[dict[str, Any]]) -> tuple[list[object], ...]:
        """How many there are, their names, which they are, of which kind, and which are not kept.

        Of which kind those are that were there: another one has another `id`, as these are held.
        """
        filled = list(filter(None, registers))  # most have nothing
        return (
            list(map(len, registers)),
            list(chain.from_iterable(filled)),
            [id(each) for register in filled for each in register.values()],
            list(map(_KIND, self._tensors)),
            [name for module in self._modules for name in module.get(NOT_KEPT, ())],
        )

    @property
    def code(self) -> int:
        """Of names, shapes and types of parameters and persistent buffers, and what is trained."""
        return self._code

    def digest(self, part: Slice, code: int) -> Digest:
        """Two numbers that tell steps apart that must not be reduced together.

        By their place in the training, by the order of the epoch's samples, and by the model.

        Args:
            part: This worker's.
            code: Of the model when it was computed.
        """
        place = f"{part.epoch}.{part.step_in_epoch}.{part.order_code}{self._name}"
        code, limit = zlib.crc32(place.encode(), code), 1 << DIGEST_BITS
        return float(code % limit), float(code // limit % limit)

    def forget(self) -> None:
        """The next look finds everything new."""
        self._facts = []
        self._modules = []
        self._objects = []
        self._tensors = []

    def mark(self) -> None:
        """From here on the parameters must not change until `check_unwritten`."""
        self._versions = list(map(_VERSION, self._counted))

    def check_unwritten(self) -> None:
        """Make sure that the first forward pass since `mark` has left the parameters alone.

        Raises:
            UserError: It has not; says which.
        """
        before, self._versions = self._versions, None
        if before is None or before == (now := list(map(_VERSION, self._counted))):
            return
        written = next(
            p for p, one, other in zip(self._counted, before, now, strict=True) if one != other
        )
        name = next(name for name, each in self.parameters.items() if each is written)
        raise UserError(
            f"the forward pass writes into the parameter {name}: each worker would write "
            "something else; keep it in a buffer, or write after trainer.step"
        )

    def check_alike(
        self,
        collective: Collective,
        sums: Sequence[float],
        *,
        digest: Digest,
        part: Slice,
        num_workers: int,
    ) -> None:
        """Make sure that all workers have computed the same step with the same model.

        Args:
            collective: The rendezvous.
            sums: Of digests of workers.
            digest: This worker's when it computed the step.
            part: This worker's part of the step.
            num_workers: Of how many workers the sums are.

        Raises:
            JobError: The steps or the models differ; says in what.
        """
        if list(sums) == [num_workers * number for number in digest]:
            return
        name = read_launch_settings().name(collective.rank)
        place = f"step {part.step_in_epoch} of epoch {part.epoch}"
        place += f" of {self._name}" if self._name else ""
        text = "\n".join([name, place, f"{part.order_code:08x}", *self._lines()])
        found = gather_bytes(collective, text.encode(), "registered")
        raise JobError(_difference([payload.decode().split("\n") for payload in found]))

    def _lines(self) -> list[str]:
        return [" ".join(map(str, (name, *facts[:-1]))) for name, _, facts in self._facts]


def _facts(tensor: torch.Tensor | None) -> tuple[object, ...]:
    """What must be equal on all workers, and last what may differ."""
    if tensor is None:
        return ("none", "")
    trained = "trained" if tensor.requires_grad else "fixed"
    return (list(tensor.shape), tensor.dtype, trained, tensor.device)


def _difference(models: list[list[str]]) -> str:
    """Of the first worker and the first that differs: each its name, its step, and its model."""
    (first, place, order, *lines), (other, there, theirs, *others) = (
        models[0],
        next((model for model in models if model[1:] != models[0][1:]), models[-1]),
    )
    if place != there:
        return (
            f"{first} takes {place}, {other} {there}: leave an epoch early after the same step on "
            "all workers: decide by trainer.applied_steps, trainer.loss or what trainer.evaluate "
            "gives, not by counting batches, as a worker that joins or takes a step again counts "
            "others"
        )
    if order != theirs:
        return (
            f"{place}: the sampler of {first} gives the samples in the order {order}, that of "
            f"{other} in {theirs} (digests): it must depend on nothing but the epoch and the "
            "global generators; what a script changes in it belongs into extra_state"
        )
    mine = next((line for line in lines if line not in others), "nothing else")
    other_line = next((line for line in others if line not in lines), "nothing else")
    return (
        f"the workers' models differ: {first} has {mine}, {other} has {other_line}: change a model "
        "between the same two steps on all workers"
    )
