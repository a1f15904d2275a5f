"""Parts of an optimizer's state as workers write them down, and the whole of them again.

A part tells for itself where each of its pieces belongs, so that who puts them together needs
neither the model nor the optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from hetero_hvd.worker.shards.element_wise import State


class PartsMissing(Exception):  # noqa: N818 - becomes a whole sentence before anybody sees it
    """The parts are not the whole, as the rest of a sentence."""


def part_of(
    version: tuple[int, int],
    names: Collection[str],
    pieces: Iterable[tuple[int, Sequence[int], Sequence[int], State]],
) -> dict[str, Any]:
    """A part as plain data.

    Args:
        version: Which updates the state has had; all parts of a whole have the same.
        names: Of the entries with a number for each element.
        pieces: Number of a parameter, its shape, first element and the one behind the last, and
            their state, of which copies are taken to the host.
    """
    there = [
        (number, tuple(shape), tuple(elements), {k: _on_host(v) for k, v in state.items()})
        for number, shape, elements, state in pieces
    ]
    return {"version": version, "names": sorted(names), "pieces": there}


def _on_host(value: Any) -> Any:  # noqa: ANN401 - any state
    return value.cpu() if isinstance(value, torch.Tensor) else value


def joined(parts: Iterable[dict[str, Any]]) -> dict[int, State]:
    """Number of a parameter to its state, as the optimizer itself has it.

    Args:
        parts: In any order; each is let go of before the next one is asked for.

    Raises:
        PartsMissing: They are of several versions, or some elements are in none of them.
    """
    states: dict[int, State] = {}
    filled: Counter[tuple[int, str]] = Counter()
    versions: set[tuple[int, int]] = set()
    for part in parts:
        versions.add(tuple(part["version"]))
        if len(versions) > 1:
            raise PartsMissing("they are of several versions")
        for number, shape, (start, stop), state in part["pieces"]:
            into = states.setdefault(number, {}) if state else {}
            for name, value in state.items():
                if name not in part["names"]:
                    into[name] = value
                    continue
                if name not in into:
                    into[name] = torch.zeros(tuple(shape), dtype=value.dtype)
                into[name].view(-1)[start:stop] = value
                filled[number, name] += stop - start
    for (number, name), count in filled.items():
        if count != states[number][name].numel():
            raise PartsMissing(f"of {name} of parameter {number} elements are missing")
    return dict(sorted(states.items()))
