"""What is to happen at each applied step happens on every worker: with a part of it or without."""

from __future__ import annotations

import json
from functools import cache

import msgspec
import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset
from turns import run_in_turns

from hetero_hvd import Trainer, UserError
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.messages import Evaluated
from hetero_hvd.worker.lead.outbox import Outbox, told_in
from hetero_hvd.worker.session.plan_source import even_plan
from tests.kit.local_planner import LocalPlanner

SIZE, BATCH = 17, 8
"""The last step of an epoch has one sample: all workers but one have no part of it."""

X = torch.arange(float(SIZE))[:, None].expand(-1, 3) / SIZE
LATE = {"staleness_bound": 2, "staleness_warmup_steps": 2, "lookahead": False}
MODES = {
    "plain": {},
    "accumulating": {"accumulation_steps": 2},
    "late": LATE,
    "late, looking ahead": LATE | {"lookahead": True},
    "wait-free": {"wait_free": True, "micro_batch_size": 2},
    "reproducible": {"reproducible": True, "grain": 2},
}


@pytest.fixture(autouse=True)
def restore_torch():
    """The reproducible mode switches torch to deterministic algorithms for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


class Script:
    """A worker's script with a moving average of the model."""

    def __init__(self, context, after_step=None, **options):
        self.model = nn.Linear(3, 1)
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.linspace(-1, 1, 4), self.model.parameters())
        self.average = AveragedModel(self.model, avg_fn=lambda mean, new, _: 0.5 * (mean + new))
        self.calls = []
        self.trainer = Trainer(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9),
            DataLoader(TensorDataset(X), BATCH, shuffle=True),
            extra_state={"average": self.average},
            after_step=lambda: (after_step or type(self).after_step)(self),
            **options,
        )
        self.trainer._state._context = context

    def after_step(self):
        """As a user would write it."""
        self.calls.append((self.trainer.applied_steps, self.trainer.loss))
        self.average.update_parameters(self.model)

    def loss(self, x):
        """Of a part."""
        return (self.model(x) - x[:, :1]).square().mean()

    def run(self, epochs=3):
        """Train; the end proves that all replicas are equal, the average included."""
        for _ in self.trainer.epochs(epochs):
            for (x,) in self.trainer.batches():
                self.trainer.step(self.loss, x)
        return self


def values(script):
    """The parameters and their average."""
    parts = (script.model, script.average.module)
    return torch.cat([nn.utils.parameters_to_vector(part.parameters()) for part in parts]).tolist()


@cache
def alone(mode, after_step=None):
    """What one worker comes to."""
    (script,) = run_together(
        Hub(1), lambda context: Script(context, after_step, **MODES[mode]).run()
    )
    return script


@pytest.mark.parametrize("mode", MODES)
def test_it_is_called_on_every_worker_at_every_step(mode):
    """In order, once for each applied step, when the parameters are those after it."""
    together = run_together(Hub(3), lambda context: Script(context, **MODES[mode]).run())
    for script in together:
        assert script.calls == together[0].calls
        assert [step for step, _ in script.calls] == list(range(1, len(script.calls) + 1))
        assert values(script) == values(together[0])
        if mode not in {"wait-free", "late, looking ahead"}:  # whose steps differ by the division
            assert values(script) == pytest.approx(values(alone(mode)), abs=1e-6)


FAULTS = [
    (mode, (1, operation, turn, when))
    for mode, operation in (
        ("plain", "totals.0"),
        ("late", "totals.1"),
        ("reproducible", "grains"),
    )
    for turn in (1, 2)
    for when in ("before", "after")
]


@pytest.mark.parametrize(("mode", "fault"), FAULTS)
def test_a_fault_leaves_the_averages_equal(mode, fault):
    """Whoever missed a step gets what the call has made of it, from who has applied it."""
    hub = Hub(3, [fault])
    scripts = run_together(hub, lambda context: Script(context, **MODES[mode]).run())
    assert hub.fired == {fault}
    assert len({tuple(values(script)) for script in scripts}) == 1
    assert values(scripts[0]) == pytest.approx(values(alone(mode)), abs=1e-6)


def shake(script):
    """Draw random numbers."""
    with torch.no_grad():
        script.model.weight += 0.01 * torch.randn_like(script.model.weight)
    script.average.update_parameters(script.model)


@pytest.mark.parametrize("mode", ["plain", "late", "reproducible"])
def test_its_random_numbers_are_the_same_everywhere(mode):
    """Though the workers' generators are not; and what is drawn outside does not notice."""

    def one(context):
        found = Script(context, shake, **MODES[mode]).run(epochs=1)
        return values(found), torch.rand(()).item()

    results = run_in_turns(Hub(3), one)
    assert len({tuple(parameters) for parameters, _ in results}) == 1
    if mode != "reproducible":
        assert len({following for _, following in results}) == 3


def evaluating(script):
    """Evaluate, then go on; in the midst of an epoch and at its last step."""
    loader = DataLoader(TensorDataset(X), 4)
    found = script.trainer.evaluate(lambda x: {"out": script.model(x).mean()}, loader)
    script.calls.append(found["out"])
    script.average.update_parameters(script.model)


@pytest.mark.parametrize("mode", ["plain", "late", "reproducible"])
@pytest.mark.parametrize("fault", [None, (1, "metrics", 1, "before"), (0, "metrics", 3, "after")])
def test_it_may_evaluate(mode, fault):
    """At any step, also where workers have no part; a fault makes each evaluate the whole set."""
    hub = Hub(3, [fault] if fault else [])
    scripts = run_together(hub, lambda context: Script(context, evaluating, **MODES[mode]).run())
    assert hub.fired == hub.faults
    for script in scripts:
        assert values(script) == pytest.approx(values(alone(mode, evaluating)), abs=1e-6)
        assert script.calls == pytest.approx(alone(mode, evaluating).calls, abs=1e-6)


def failing(_script):
    """Go wrong."""
    raise ZeroDivisionError("in after_step")


MISTAKES = {
    "an exception": (failing, ZeroDivisionError, "in after_step"),
    "a step": (
        lambda script: script.trainer.step(script.loss, X),
        UserError,
        "trainer.step was called in after_step",
    ),
    "an update": (
        lambda script: script.trainer.apply(),
        UserError,
        "trainer.apply was called in after_step",
    ),
}


@pytest.mark.parametrize("mode", ["plain", "late", "reproducible"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_goes_wrong_in_it_goes_wrong_in_the_script(mode, mistake):
    """The exception comes out of the trainer's call; the step that it follows is applied."""
    after_step, error, message = MISTAKES[mistake]
    scripts = []

    def one(context):
        scripts.append(Script(context, after_step, **MODES[mode]))
        scripts[-1].run()

    with pytest.raises(error, match=message):
        run_together(Hub(1), one)
    assert scripts[0].trainer.applied_steps == 1


def leave(_script):
    """Leave the epoch in its middle."""
    return True


def in_the_loop(act, *, when=1, **options):
    """A script that does something in the loop's body after one of three steps."""

    def one(context):
        script = Script(context, **options)
        for _ in script.trainer.epochs(1):
            for (x,) in script.trainer.batches():
                script.trainer.step(script.loss, x)
                if script.trainer.applied_steps == when and act(script):
                    break
        return script.trainer.applied_steps

    return one


ALONE_IN_A_STEP = {"micro_batch_size": BATCH, "equal_micro_batches": True}
"""A batch that is not divided: all workers but one have no part of it."""


def test_to_leave_where_others_cannot_see_it_is_refused():
    """Workers without a part of a step do not run the body of the loop."""
    words = r"2 of 3 workers have no part of this step and do not run the body of the loop"
    with pytest.raises(UserError, match=words):
        run_together(Hub(3), in_the_loop(leave, **ALONE_IN_A_STEP))
    assert run_together(Hub(3), in_the_loop(leave)) == [1] * 3


def test_an_evaluation_where_others_do_not_come_is_over_the_whole_set():
    """Who has a part of the step goes over all of it, and asks for parts for all if they can help.

    An epoch's small last batch leaves workers without a part whatever the plan.
    """
    found, told = [], []

    def evaluate_and_keep(script):
        script.trainer._state.context.tell = lambda event: keep(told, event)
        result = script.trainer.evaluate(lambda x: {"mean": x.mean()}, DataLoader(X, 4))
        found.append(result["mean"])

    assert run_together(Hub(3), in_the_loop(evaluate_and_keep, **ALONE_IN_A_STEP)) == [3] * 3
    assert found == [pytest.approx(X.mean().item())]
    assert [event.needs_all for event in told] == [True]
    found.clear()
    told.clear()
    last = in_the_loop(evaluate_and_keep, when=3)  # its one sample leaves two workers without
    assert run_together(Hub(3), last) == [3] * 3
    assert found == [pytest.approx(X.mean().item())]
    assert [event.needs_all for event in told] == [False]
    found.clear()
    told.clear()
    assert run_together(Hub(3), in_the_loop(evaluate_and_keep)) == [3] * 3
    assert found == [pytest.approx(X.mean().item())] * 3
    assert [event.needs_all for event in told] == [False]


def keep(told, event):
    """Evaluations alone."""
    if isinstance(event, Evaluated):
        told.append(event)


class LeaderIdle(LocalPlanner):
    """Gives rank 0 no part."""

    def joined(self, event):
        """The only plan."""
        return msgspec.structs.replace(even_plan(event), local_batch_sizes=(0, 4, 4))

    def timed(self, _):
        """Of no interest."""


def hear(told, payloads):
    """Note what each rank has told of its evaluations."""
    for rank, payload in enumerate(payloads):
        messages = told_in(payload) if payload else []
        found = [event for event in messages if isinstance(event, Evaluated)]
        told += [(rank, event.step, event.needs_all) for event in found]


def test_the_leader_without_a_part_loses_no_evaluation(tmp_path, monkeypatch):
    """The first worker with a part keeps the best state, and rank 0 hears of it by an exchange."""
    settings = {"folder": str(tmp_path), "run": "one", "every_seconds": 0, "best": "-loss"}
    monkeypatch.setenv("HETERO_HVD_LAUNCH", json.dumps({"checkpoints": settings}))
    told = []

    def one(context):
        outbox, rank = Outbox(), context.collective.rank
        context.planner = LeaderIdle(BalanceConfig())
        context.tell = outbox.put
        context.payload = outbox.take
        if rank == 0:
            context.heard = lambda payloads: hear(told, payloads)
        script = Script(context)
        for _ in script.trainer.epochs(3):
            for (x,) in script.trainer.batches():
                script.trainer.step(script.loss, x)
                if (step := script.trainer.applied_steps) in (2, 4):
                    script.trainer.evaluate(lambda _, step=step: {"loss": step}, DataLoader(X, 4))

    run_together(Hub(3), one)
    assert told == [(1, 2, True), (1, 4, True)]
    found = [json.loads(path.read_text()) for path in tmp_path.glob("step-*/manifest.json")]
    assert {each["applied_steps"]: each["metrics"] for each in found} == {2: {"loss": 2.0}, 9: {}}
