"""Out of memory: allocations that no machine can grant, on workers that are threads."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer, UserError

SIZE, BATCH, TOO_MANY_BYTES = 24, 12, 2**50
torch.manual_seed(0)
INITIAL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(context, *, most, num_epochs=2, allocate=lambda: torch.empty(TOO_MANY_BYTES), **options):
    """Epochs with room for `most` samples at once on rank 0; sizes seen, and the model."""
    model = copy.deepcopy(INITIAL)
    x = torch.linspace(-1, 1, SIZE)[:, None].expand(-1, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, optimizer, DataLoader(TensorDataset(x), BATCH), **options)
    trainer._state._context = context
    seen = []

    def loss(part):
        seen.append(len(part))
        if context.collective.rank == 0 and len(part) > most:
            allocate()
        return model(part).square().mean()

    for _ in trainer.epochs(num_epochs):
        for (mine,) in trainer.batches():
            trainer.step(loss, mine)
    return seen, nn.utils.parameters_to_vector(model.parameters())


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(TOO_MANY_BYTES),
        lambda: np.ones(TOO_MANY_BYTES),
        lambda: bytearray(TOO_MANY_BYTES),
    ],
)
def test_the_step_is_halved_until_it_fits(allocate):
    """All allocators are understood, whatever they call it; the other worker notices nothing."""
    (_, alone), *_ = run_together(Hub(1), lambda context: train(context, most=BATCH))
    (seen, first), (others, second) = run_together(
        Hub(2), lambda context: train(context, most=2, allocate=allocate)
    )
    assert seen == [6, 3, 1, 1, 1, 1, 1, 1, *([1] * 18)]
    assert others == [6, 6, 6, 6]
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone)


def test_steps_under_way_are_left_alone():
    """With a staleness bound the step that fails is computed anew, those before it are final."""
    late = {"staleness_bound": 2, "staleness_warmup_steps": 0, "num_epochs": 3}
    (_, expected), *_ = run_together(Hub(2), lambda context: train(context, most=BATCH, **late))
    (seen, first), (_, second) = run_together(
        Hub(2), lambda context: train(context, most=2, **late)
    )
    assert seen[:3] == [6, 3, 1]
    assert set(seen[3:]) == {1}
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected)


def test_one_sample_that_does_not_fit_is_the_users_matter():
    """One line says who, on what, how many bytes, and what may help."""
    with pytest.raises(UserError) as caught:
        run_together(Hub(1), lambda context: train(context, most=0))
    text = str(caught.value)
    assert "\n" not in text
    for words in ("node:0 (", " threads)", "one sample at a time", f"{4 * TOO_MANY_BYTES} bytes"):
        assert words in text
    assert "activation checkpointing" in text


def test_equal_micro_batches_are_equal_on_all_workers():
    """Shares are multiples of them; only the rest of an epoch is smaller."""
    results = run_together(
        Hub(2),
        lambda context: train(context, most=BATCH, micro_batch_size=4, equal_micro_batches=True),
    )
    assert [seen for seen, _ in results] == [[4, 4] * 4, [4] * 4]


def test_equal_micro_batches_are_not_made_smaller():
    """They are equal because the script needs it: so it is told."""
    with pytest.raises(
        UserError, match="no memory for 4 samples at a time, fewer are not allowed by"
    ):
        run_together(
            Hub(1),
            lambda context: train(context, most=3, micro_batch_size=4, equal_micro_batches=True),
        )


def test_automatic_micro_batches_start_small_and_grow():
    """Of a tiny model larger ones always pay; the parameters are those of whole batches."""
    ((seen, found),) = run_together(
        Hub(1), lambda context: train(context, most=BATCH, num_epochs=20, micro_batch_size="auto")
    )
    ((_, whole),) = run_together(Hub(1), lambda context: train(context, most=BATCH, num_epochs=20))
    assert seen[0] == 1
    assert max(seen) > 2
    torch.testing.assert_close(found, whole)


def test_other_errors_pass():
    """They are not retried."""
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run_together(
            Hub(1),
            lambda context: train(context, most=0, allocate=lambda: INITIAL(torch.ones(1, 2))),
        )
