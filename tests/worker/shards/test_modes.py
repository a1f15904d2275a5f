"""What else a training with parts may do: the reproducible mode, and scaled losses."""

from __future__ import annotations

import math

import pytest
import torch
from rendezvous import Hub, run_together
from sharded_script import Script, check

REPRODUCIBLE = {"reproducible": True, "grain": 2}
ROOMS = (24,) * 4
SCALE = 2.0**12


@pytest.fixture(scope="module")
def exact():
    """The bits of the whole state on one worker."""
    return run_together(Hub(1), lambda c: Script(c, shards=False, **REPRODUCIBLE).run())[0]


@pytest.mark.usefixtures("_torch_is_put_back")
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_the_reproducible_mode_has_the_bits_of_the_whole_on_any_cluster(exact, num_workers):
    """Of model, average and all parts."""
    scripts = run_together(Hub(num_workers), lambda context: Script(context, **REPRODUCIBLE).run())
    check(scripts, exact, copies=min(2, num_workers))
    assert all(torch.equal(script.values, exact.values) for script in scripts)


@pytest.mark.usefixtures("_torch_is_put_back")
def test_its_checkpoints_are_those_of_the_whole(exact):
    """Bit for bit, and they are gone on with by another number of workers."""
    plain, parts = (
        run_together(
            Hub(number), lambda c, s=shards: Script(c, shards=s, **REPRODUCIBLE).keep_at(3).run()
        )[0].snapshot
        for number, shards in ((1, False), (3, True))
    )
    for number, state in plain["optimizer"]["state"].items():
        kept = parts["optimizer"]["state"][number]
        assert all(torch.equal(value, kept[name]) for name, value in state.items())
    scripts = run_together(Hub(4), lambda c: Script(c, **REPRODUCIBLE).resume(parts).run())
    check(scripts, exact)
    assert all(torch.equal(script.values, exact.values) for script in scripts)


@pytest.mark.usefixtures("_torch_is_put_back")
@pytest.mark.parametrize(
    "fault",
    [
        (0, "grains.0", 3, "after"),
        (2, "grains", 1, "unsent"),
        (1, "shards.parameters.1", 4, "after"),
        (2, "shards.parameters.0", 3, "sent"),
    ],
    ids=lambda fault: "-".join(map(str, fault)),
)
def test_no_fault_changes_a_bit_of_it(exact, fault):
    """Whoever has not got the sums, or is lost in the midst of the update."""
    hub = Hub(3, [fault])
    scripts = run_together(hub, lambda c: Script(c, rooms=ROOMS, **REPRODUCIBLE).run())
    assert hub.fired == hub.faults
    check(scripts, exact)
    assert all(torch.equal(script.values, exact.values) for script in scripts)


class Scaled(Script):
    """Its losses are scaled, and those of worker 1 overflow at some steps."""

    def __init__(self, context, *, overflows=(), **options):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)
        super().__init__(context, scaler=self.scaler, **options)
        self.overflows = overflows
        self.scales = {}

    def loss(self, x):
        """Infinite where it is to be."""
        step = self.trainer.applied_steps
        is_wrong = step in self.overflows and self.rank == min(1, self.trainer.num_workers - 1)
        return super().loss(x) * (math.inf if is_wrong else 1)

    def after_step(self):
        """See which scale there is."""
        super().after_step()
        self.scales[self.trainer.applied_steps] = self.scaler.get_scale()


@pytest.mark.parametrize("options", [{}, REPRODUCIBLE], ids=["synchronous", "reproducible"])
@pytest.mark.usefixtures("_torch_is_put_back")
def test_an_overflow_is_skipped_by_all_holders(options):
    """The scale is the same everywhere, and all is as with the whole state."""
    options = {"overflows": (1, 4), **options}
    plain = run_together(Hub(3), lambda c: Scaled(c, shards=False, **options).run())[0]
    assert plain.scales == {1: 4096, 2: 2048, 3: 2048, 4: 2048, 5: 1024, 6: 1024, 7: 1024, 8: 2048}
    scripts = run_together(Hub(3), lambda c: Scaled(c, **options).run())
    check(scripts, plain)
    assert all(script.scales == plain.scales for script in scripts)
    steps = {v for script in scripts for (_, name), v in script.states().items() if name == "step"}
    assert steps == {6.0}  # of eight


@pytest.mark.parametrize(
    "fault",
    [
        (0, "totals.0", 5, "after"),  # has not got the sums of a step that overflows
        (0, "gradients.0.0", 3, "after"),
        (0, "shards.parameters.2", 3, "after"),  # others are through with the update
        (2, "shards.parameters.0", 2, "sent"),
        (2, "gradients.0.0", 5, "unsent"),
    ],
    ids=lambda fault: "-".join(map(str, fault)),
)
def test_a_fault_changes_no_scale(fault):
    """Whoever has not got the sums takes over what others have found out of them."""
    options = {"overflows": (4,), "rooms": ROOMS}
    plain = run_together(Hub(3), lambda c: Scaled(c, shards=False, **options).run())[0]
    hub = Hub(3, [fault])
    scripts = run_together(hub, lambda c: Scaled(c, **options).run())
    assert hub.fired == hub.faults
    check(scripts, plain)
    last = plain.scales[max(plain.scales)]
    assert {script.scaler.get_scale() for script in scripts} == {last}
    assert all(script.scales.items() <= plain.scales.items() for script in scripts)
