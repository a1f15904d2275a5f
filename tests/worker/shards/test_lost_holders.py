"""A state in parts trains as a whole one does, whoever is lost at whatever operation."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from rendezvous import PATIENCE_SECONDS, Hub, run_together
from sharded_script import EPOCHS, STEPS, Script, check

from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.worker.shards import sharded_optimizer


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_parts_train_as_the_whole_does(undisturbed, num_workers):
    """Without a fault; what one worker could hold alone is held by two all the same."""
    scripts = run_together(Hub(num_workers), lambda context: Script(context).run())
    check(scripts, undisturbed, copies=min(2, num_workers))
    if num_workers > 2:
        lengths = [sum(s.length for s in script.shards.slices.spans()) for script in scripts]
        wanted = [10, 6, 4] if num_workers == 3 else [9, 5, 3, 3]
        assert max(abs(a - b) for a, b in zip(lengths, wanted, strict=True)) <= 1


def test_the_bits_are_those_of_the_whole(undisturbed):
    """With the same sums."""
    scripts = run_together(Hub(3), lambda context: Script(context).run())
    assert all(torch.equal(script.values, undisturbed.values) for script in scripts)


@pytest.mark.parametrize(("num_workers", "num_loaders"), [(1, 1), (2, 2), (4, 1), (4, 2)])
def test_a_checkpoint_is_the_optimizers_own_and_is_gone_on_with_by_any_number(
    undisturbed, num_workers, num_loaders
):
    """As it would be without parts; one worker has it, or several; or none is in parts any more."""
    plain = run_together(Hub(1), lambda c: Script(c, shards=False).keep_at(3).run())[0]
    first, *others = run_together(Hub(3), lambda context: Script(context).keep_at(3).run())
    check([first, *others], undisturbed)
    assert not any(script.snapshot for script in others)
    assert first.snapshot["kinds"] == plain.snapshot["kinds"]
    kept, wanted = (each.snapshot["optimizer"]["state"] for each in (first, plain))
    assert kept.keys() == wanted.keys()
    for number, state in wanted.items():
        assert kept[number].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(kept[number][name], value)

    def go_on(context):
        script = Script(context)
        return (script.resume(first.snapshot) if script.rank < num_loaders else script).run()

    check(run_together(Hub(num_workers), go_on), undisturbed, copies=min(2, num_workers))
    alone = run_together(Hub(1), lambda c: Script(c, shards=False).resume(first.snapshot).run())
    assert alone[0].values == pytest.approx(undisturbed.values, abs=1e-6)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_state_that_the_script_loads_is_gone_on_with(undisturbed, is_late):
    """Before the trainer is made, or after that; the bits are those of the whole."""
    kept = undisturbed.optimizer.state_dict()

    def go_on(context, *, shards):
        script = Script(context, shards=shards, state=None if is_late else kept)
        if is_late:
            script.optimizer.load_state_dict(copy.deepcopy(kept))
        return script.run()

    plain = run_together(Hub(1), lambda context: go_on(context, shards=False))[0]
    assert not torch.equal(plain.values, undisturbed.values)
    for script in run_together(Hub(3), lambda context: go_on(context, shards=True)):
        assert script.values == pytest.approx(plain.values, abs=1e-6)


class HubWithComer(Hub):
    """Its last worker comes when a fault happens, before the others have met again."""

    def __init__(self, size, faults):
        super().__init__(size, faults)
        self.left = {size - 1}

    def enter(self, name):
        """A comer waits for its turn."""
        with self.changed:
            assert self.changed.wait_for(lambda: name not in self.left, PATIENCE_SECONDS)
            return super().enter(name)

    def is_due(self, place, when):
        """As there."""
        if is_due := super().is_due(place, when):
            self.left.discard(self.size - 1)
        return is_due


@pytest.mark.parametrize("is_loaded", [False, True], ids=["with nothing", "with the checkpoint"])
@pytest.mark.parametrize("operation", ["gradients.0.0", "shards.parameters.0"])
def test_who_comes_in_the_first_update_was_in_no_step_of_the_others(
    undisturbed, is_loaded, operation
):
    """It begins where they did, so its parts are of the version before that update."""
    hub = HubWithComer(4, [(0, operation, 1, "after")])
    kept = run_together(Hub(1), lambda c: Script(c, shards=False).keep_at(3).run())[0].snapshot

    def work(context):
        script = Script(context, rooms=(24,) * 4)
        if is_loaded:
            return script.resume(kept).run()
        if script.rank == 3:
            with torch.no_grad():
                for parameter in script.model.parameters():
                    parameter.add_(1)
        return script.run()

    scripts = run_together(hub, work)
    assert hub.fired == hub.faults
    check(scripts, undisturbed)


def test_who_has_too_little_room_together_is_told_so_in_one_line():
    """Before the first step, with what there is and what is needed."""
    with pytest.raises(JobError, match=r"shard_optimizer: 3 workers have room for .* MiB") as error:
        run_together(Hub(3), lambda context: Script(context, rooms=(9, 6, 4)).run())
    assert "add workers or memory" in str(error.value)


def test_a_part_that_all_its_holders_take_with_them_is_named():
    """And where there is no checkpoint the job is to be started again."""
    faults = [(rank, "shards.parameters.0", 3, "unsent") for rank in (0, 1)]
    with pytest.raises(TryAgainError) as error:
        run_together(Hub(4, faults), lambda context: Script(context).run())
    words = (
        r"after step \d all workers that held \d+% of the optimizer's state are lost, and there is"
    )
    assert re.match(words, str(error.value))


def test_one_after_the_other_is_lost_and_the_last_goes_on_alone(undisturbed, monkeypatch):
    """Between two losses the parts have got their second holders."""
    monkeypatch.setattr(sharded_optimizer, "MOVE_BLOCKS", 10)
    faults = [
        (0, "totals.0", 2, "sent"),
        (1, "shards.parameters.1", 5, "unsent"),
        (2, "shards.parameters.0", 8, "sent"),
    ]
    hub = Hub(4, faults)
    scripts = run_together(hub, lambda context: Script(context, rooms=(24,) * 4).run())
    assert hub.fired == hub.faults
    check(scripts, undisturbed, copies=1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "operation", ["reports", "shards.gradient.0.0", "shards.parameters.0", "shards.move.1"]
)
def test_a_second_fault_while_the_first_is_mended_changes_nothing(undisturbed, operation, when):
    """Worker 0 has not got the sums of a step that the others are in the midst of applying."""
    turn = 4 if operation == "shards.parameters.0" else 2 if operation == "reports" else 1
    faults = [(0, "gradients.0.0", 3, "after"), (2, operation, turn, when)]
    if operation == "shards.move.1":
        faults.append((1, "totals.0", 5, "sent"))
    hub = Hub(3, faults)
    scripts = run_together(hub, lambda context: Script(context, rooms=(24, 24, 24)).run())
    assert hub.fired == hub.faults
    check(scripts, undisturbed)


OPERATIONS = ("gradients.0.0", "totals.0", "shards.parameters.0", "shards.parameters.2")
WAYS = ("before", "after", "unsent", "sent")
PLACES = ((0, 1), (2, 1), (0, 3), (2, 3), (0, EPOCHS * STEPS), (2, EPOCHS * STEPS))
"""(worker, which of its operations of that name)."""

FAULTS = [
    pytest.param((rank, operation, turn, when), marks=() if is_short else pytest.mark.matrix)
    for row, operation in enumerate(OPERATIONS)
    for column, when in enumerate(WAYS)
    for number, (rank, turn) in enumerate(PLACES)
    for is_short in [number == (row + 2 * column) % len(PLACES)]
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault)))
def test_a_fault_changes_nothing(undisturbed, fault):
    """Whoever is lost, or only hears of nothing; its parts get their second holders again."""
    _, _, turn, when = fault
    hub = Hub(3, [fault])
    scripts = run_together(hub, lambda context: Script(context, rooms=(24, 24, 24)).run())
    assert hub.fired == hub.faults
    is_lost = when in ("unsent", "sent")
    assert len(scripts) == 3 - is_lost
    if not (is_lost and turn == EPOCHS * STEPS):  # else no step was left to move anything after
        check(scripts, undisturbed)
