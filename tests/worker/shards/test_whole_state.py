"""Parts of a state are the whole again, or say why not."""

import copy

import pytest
import torch

from hetero_hvd.worker.shards.whole_state import PartsMissing, joined, part_of

WHOLE = {
    0: {"step": 3, "exp_avg": torch.arange(12.0).view(3, 4)},
    2: {"step": torch.tensor(3.0), "exp_avg": torch.arange(5, dtype=torch.bfloat16)},
}


def parts(version=(0, 3)):
    """The whole in two, which cut its first tensor."""
    first = [(0, (3, 4), (0, 7), {"step": 3, "exp_avg": torch.arange(7.0)})]
    second = [
        (2, (5,), (0, 5), copy.deepcopy(WHOLE[2])),
        (0, (3, 4), (7, 12), {"step": 3, "exp_avg": torch.arange(7.0, 12.0)}),
        (1, (9,), (0, 9), {}),
    ]
    return [part_of((0, 3), {"exp_avg"}, first), part_of(version, {"exp_avg"}, second)]


@pytest.mark.parametrize("order", [1, -1])
def test_parts_are_the_whole_again(order):
    """In any order; a parameter without a state has none."""
    found = joined(parts()[::order])
    assert list(found) == [0, 2]
    for number, state in WHOLE.items():
        assert found[number].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(found[number][name]), torch.as_tensor(value))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (parts()[:1], "of exp_avg of parameter 0 elements are missing"),
        (parts(version=(0, 4)), "they are of several versions"),
    ],
)
def test_what_is_no_whole_is_refused(given, words):
    """It says what is wrong."""
    with pytest.raises(PartsMissing, match=words):
        joined(given)
