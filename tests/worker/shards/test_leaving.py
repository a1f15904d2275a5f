"""Workers that are asked to leave do so once others have their parts: nothing is taken back."""

from __future__ import annotations

import pytest
import torch
from rendezvous import Hub, run_together
from sharded_script import BATCH, EPOCHS, STEPS, Script, X, check
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.errors import TryAgainError

ROOMS = (24,) * 4


class Checkpoints:
    """Of which none is due until the end."""

    max_copies, takes_memory, is_writing = 1, False, False

    def __init__(self, keep):
        self.keep = keep

    def find_series(self):
        """There is none."""

    def load_newest(self):
        """There is none."""

    def why_not_resumed(self):
        """Nobody has asked for one."""
        return ""

    def is_due(self):
        """Not yet."""
        return False

    def needs_no_room(self):
        """There is none."""

    def is_best(self, _):
        """None is wanted."""
        return False

    def save(self, *_, **__):
        """Keep the whole state."""
        self.keep()

    def wait(self):
        """It is kept."""


class Leaving(Script):
    """Is asked to leave after a step, as by SIGTERM."""

    def __init__(self, context, *, after=None, **options):
        super().__init__(context, **{"rooms": ROOMS, **options})
        self.after = after or {}
        self.context = context
        self.kept = []
        context.part = lambda: None
        context.leave_code = 0
        context.is_cut_off = False

    def after_step(self):
        """See whether it is time."""
        super().after_step()
        if self.after.get(self.rank) == self.trainer.applied_steps:
            self.context.leave_reason = "SIGTERM"

    def run(self):
        """Until it is through, or has left."""
        state = self.trainer._state
        state._kept._checkpoints = Checkpoints(lambda: self.kept.append(state.replica.snapshot()))
        try:
            return super().run()
        except SystemExit:
            return self


GRAINS = {"reproducible": True, "grain": 2}


@pytest.mark.parametrize(
    ("after", "mode"),
    [
        ({0: 3}, {}),
        ({0: 3, 2: 3}, {}),
        ({1: 3, 3: 3}, GRAINS),
        ({0: 2, 2: 3}, {}),
        ({0: 3, 1: 3, 2: 3}, {}),
        ({0: 1, 2: 4, 3: 6}, GRAINS),
    ],
    ids=str,
)
@pytest.mark.usefixtures("_torch_is_put_back")
def test_whoever_leaves_at_once_leaves_nothing_behind(after, mode):
    """Several at the same step, or one after the other; those who stay train as if alone."""
    plain = run_together(Hub(1), lambda c: Script(c, shards=False, **mode).run())[0]
    scripts = run_together(Hub(4), lambda c: Leaving(c, after=after, **mode).run())
    left = [script for script in scripts if script.rank in after]
    stayed = [script for script in scripts if script.rank not in after]
    assert len(left) == len(after)
    for script in left:  # at the end of the step after the wish at the latest
        assert after[script.rank] < script.trainer.applied_steps <= after[script.rank] + 2
    check(stayed, plain, copies=min(2, len(stayed)))
    if mode:
        assert all(torch.equal(script.values, plain.values) for script in stayed)


KILLED = (0, "totals.0", 4, "sent")
MEANWHILE = {
    "in the same step": ({2: 3}, [KILLED]),
    "in the same step, two leave": ({1: 3, 2: 3}, [KILLED]),
    "in the update": ({2: 3}, [(0, "shards.parameters.1", 4, "unsent")]),
    "and its own way to the others breaks": ({2: 3}, [KILLED, (2, "init", 2, "before")]),
    "and the ways of two break": (
        {1: 3, 2: 3},
        [KILLED, (1, "init", 2, "before"), (2, "init", 2, "before")],
    ),
    "while parts are handed over to it": ({0: 3, 2: 3}, [(1, "shards.all.1", 1, "unsent")]),
}
"""Who leaves after which step, and what happens; workers 0 and 2 have the same parts."""


@pytest.mark.parametrize(("after", "faults"), MEANWHILE.values(), ids=MEANWHILE)
def test_who_is_asked_to_leave_while_another_is_lost_leaves_nothing_behind(
    undisturbed, after, faults
):
    """It alone may have what that one had: it goes with the others into the next step first."""
    hub = Hub(4, faults)
    scripts = run_together(hub, lambda c: Leaving(c, after=after).run())
    assert hub.fired == hub.faults
    left = [script for script in scripts if script.rank in after]
    assert [script.rank for script in left] == list(after)
    assert all(script.trainer.applied_steps < EPOCHS * STEPS for script in left)
    check([script for script in scripts if script.rank not in after], undisturbed, copies=1)


@pytest.mark.parametrize("leaving", [(0, 2), (0, 3), (1, 2), (1, 3)], ids=str)
def test_where_only_one_of_those_who_stay_has_room_for_all_it_gets_it(undisturbed, leaving):
    """There is none for two copies then."""
    rooms = (24, 24, 4, 4)
    stay = [rank for rank in range(4) if rank not in leaving]
    after = dict.fromkeys(leaving, 3)
    scripts = run_together(Hub(4), lambda c: Leaving(c, after=after, rooms=rooms).run())
    check([script for script in scripts if script.rank in stay], undisturbed, copies=1)


class Evaluating(Leaving):
    """Is asked to leave while it evaluates after its first epoch."""

    def metrics(self, x):
        """How far the model is."""
        if self.rank in self.after and self.trainer.applied_steps == STEPS:
            self.context.leave_reason = "SIGTERM"
        return {"loss": self.loss(x)}

    def run(self):
        """All epochs, each with an evaluation."""
        loader = DataLoader(TensorDataset(X), BATCH)
        state = self.trainer._state
        state._kept._checkpoints = Checkpoints(lambda: self.kept.append(state.replica.snapshot()))
        try:
            for _ in self.trainer.epochs(EPOCHS):
                for (x,) in self.trainer.batches():
                    self.trainer.step(self.loss, x)
                self.trainer.evaluate(self.metrics, loader)
        except SystemExit:
            pass
        return self


def test_who_is_asked_to_leave_within_an_evaluation_does_so_after_the_next_step(undisturbed):
    """Two who have the same parts: these go to the others before."""
    after = {0: -1, 2: -1}
    scripts = run_together(Hub(4), lambda c: Evaluating(c, after=after).run())
    assert {script.rank: script.trainer.applied_steps for script in scripts} == {
        rank: STEPS + 1 if rank in after else EPOCHS * STEPS for rank in range(4)
    }
    check([script for script in scripts if script.rank not in after], undisturbed)


def test_a_fault_while_parts_are_handed_over_loses_nothing(undisturbed):
    """Who wants to leave waits for the next step of those who have met again."""
    for when in ("before", "after"):
        hub = Hub(4, [(1, "shards.all.1", 1, when)])
        scripts = run_together(hub, lambda c: Leaving(c, after={0: 3, 2: 3}).run())
        assert hub.fired == hub.faults
        check([script for script in scripts if script.rank in (1, 3)], undisturbed)


@pytest.mark.parametrize(
    ("after", "rooms"),
    [(dict.fromkeys(range(4), 3), ROOMS), ({0: 3, 1: 3}, (24, 24, 4, 4))],
    ids=["all", "those who have room"],
)
def test_where_nobody_could_go_on_the_whole_state_is_kept_before(after, rooms):
    """As the last one would keep it without parts."""
    scripts = {}

    def work(context):
        script = scripts[context.settings.worker.slot] = Leaving(context, after=after, rooms=rooms)
        return script.run()

    if len(after) == 4:
        run_together(Hub(4), work)
    else:
        with pytest.raises(TryAgainError, match="of the optimizer's state are lost"):
            run_together(Hub(4), work)
    assert [len(scripts[rank].kept) for rank in range(4)] == [1, 0, 0, 0]
    state = scripts[0].kept[0]
    assert set(state["optimizer"]["state"]) == {0, 1, 2, 3}
    assert state["position"]["applied_steps"] == 4 < EPOCHS * STEPS
