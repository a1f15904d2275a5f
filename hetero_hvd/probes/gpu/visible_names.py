"""Which GPUs CUDA_VISIBLE_DEVICES names, as CUDA reads it, without loading CUDA."""

from __future__ import annotations

import re

from hetero_hvd.core.digits import whole_number

_UUID = re.compile(r"(GPU|MIG)-.+", re.DOTALL)
"""The beginning of one."""


def visible_names(given: str, num_gpus: int = 0) -> tuple[str, ...]:
    """The names before the first that can be none; none at all where one stands twice.

    So CUDA does (programming guide, "CUDA environment variables"; for names that stand twice see
    `_parse_visible_devices` of torch/cuda/__init__.py): `0,-1,1` is the first GPU alone.

    Args:
        given: The value of the variable.
        num_gpus: Of this machine; an index beyond them is none. 0: it is not known.
    """
    names: list[str] = []
    for name in map(str.strip, given.split(",")):
        if name in names:
            return ()
        index = whole_number(name)
        is_none = not _UUID.fullmatch(name) if index is None else 0 < num_gpus <= index
        if is_none:
            break
        names.append(name)
    return tuple(names)
