"""Several models in one loop: the numbers of one process, whatever the division, exactly once."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer, UserError
from hetero_hvd.errors import JobError

SIZE, BATCH, EPOCHS = 17, 8, 3
"""The last step of an epoch has one sample: all workers but one have no part of it."""

X = torch.arange(float(SIZE))[:, None].expand(-1, 3) / SIZE
MODES = {"synchronous": {}, "reproducible": {"reproducible": True, "grain": 2}}
ORDERS = {
    "the other first": ("critic", "lead"),
    "the other last": ("lead", "critic"),
    "twice, around it": ("critic", "lead", "critic"),
    "three models": ("critic", "third", "lead"),
    "each second time": ("lead", "critic if even"),
}


@pytest.fixture(autouse=True)
def restore_torch():
    """The reproducible mode switches torch to deterministic algorithms for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)


def made(bias):
    """A small network with something to keep in a buffer."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=0.5), nn.Linear(3, 1))
    model[1].eval()  # single samples have no statistics
    with torch.no_grad():
        numbers = torch.linspace(-1, 1, sum(p.numel() for p in model.parameters())) + bias
        nn.utils.vector_to_parameters(numbers, model.parameters())
    return model


class Script:
    """A generator, a critic that judges what it makes, and a third one that follows both."""

    def __init__(self, context, order="the other last", *, unpack="whole", **options):
        self.order = ORDERS[order]
        self.unpack = unpack
        self.models = {"lead": made(0.0), "critic": made(0.1), "third": made(0.2)}
        optimizers = {
            name: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
            for name, model in self.models.items()
        }
        self.schedule = torch.optim.lr_scheduler.StepLR(optimizers["critic"], 2, 0.9)
        loader = DataLoader(TensorDataset(X), BATCH, shuffle=True)
        self.trainer = Trainer(self.models["lead"], optimizers["lead"], loader, **options)
        self.steps = {"lead": self.trainer}
        for name in sorted({name.split()[0] for name in self.order} - {"lead"}):
            more = {"scheduler": self.schedule, "scheduler_interval": "step"}
            self.steps[name] = self.trainer.add_model(
                name, self.models[name], optimizers[name], **(more if name == "critic" else {})
            )
        self.trainer._state._context = context
        self.losses = []
        self.batches = []

    def loss(self, name):
        """Each depends on another model too, whose parameters it must leave alone."""

        def of(x):
            made_up, judged = self.models["lead"](x), self.models["critic"](x)
            if name == "third":
                return (self.models["third"](x) - judged * made_up).square().mean()
            sign = 1.0 if name == "lead" else -0.5
            return ((made_up - x[:, :1]) * sign + judged).square().mean()

        return of

    def take(self, batch):
        """The body of the loop."""
        for word in self.order:
            name, is_rare = word.split()[0], " " in word
            if is_rare and self.trainer.applied_steps % 2:
                continue
            self.batches.append((name, batch))
            given = batch if self.unpack == "unpacked" else [batch]
            if self.unpack == "changed":
                given = [batch[0] * 1.0]
            function = self.loss(name)
            if self.unpack == "whole":
                function = lambda x, f=function: f(*x)  # noqa: E731 - a batch is a list of one
            self.losses.append((name, self.steps[name].step(function, *given)))

    def one(self, name, times=1):
        """Take steps of one model."""
        for _ in range(times):
            self.steps[name].step(lambda x: self.loss(name)(*x), self.batch)

    def evaluate(self):
        """Over a set that is no part of the training's."""
        held_out = DataLoader(TensorDataset(X[:4]), 2)
        return self.trainer.evaluate(lambda x: {"mean": self.models["lead"](x).mean()}, held_out)

    def run(self, epochs=EPOCHS):
        """Train; the end proves that all replicas are equal."""
        for _ in self.trainer.epochs(epochs):
            for batch in self.trainer.batches():
                self.take(batch)
        return self


def values(script):
    """All parameters, and the learning rate that the schedule has come to."""
    used = [script.models[name] for name in sorted(script.steps)]
    numbers = [nn.utils.parameters_to_vector(model.parameters()) for model in used]
    return [*torch.cat(numbers).tolist(), *script.schedule.get_last_lr()]


def by_hand(script):
    """What plain PyTorch makes of the batches that a script alone has had."""
    other = Script(None, "three models")
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for name, model in other.models.items()
    }
    schedule = torch.optim.lr_scheduler.StepLR(optimizers["critic"], 2, 0.9)
    for name, batch in script.batches:
        optimizers[name].zero_grad()
        loss = other.loss(name)(batch[0])
        loss.backward()
        optimizers[name].step()
        if name == "critic":
            schedule.step()
    return other.models


@cache
def alone(mode, order):
    """What one worker comes to."""
    (script,) = run_together(Hub(1), lambda context: Script(context, order, **MODES[mode]).run())
    return script


@pytest.mark.parametrize("order", ORDERS)
def test_alone_it_is_what_plain_pytorch_does(order):
    """The same numbers, with each model's own optimizer and schedule."""
    script = alone("synchronous", order)
    plain = by_hand(script)
    for name in script.steps:
        found, expected = script.models[name].parameters(), plain[name].parameters()
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ORDERS)
def test_the_division_does_not_matter(mode, order):
    """Losses and parameters of three workers, of which two have no part of some steps."""
    together = run_together(Hub(3), lambda context: Script(context, order, **MODES[mode]).run())
    one = alone(mode, order)
    for script in together:
        assert values(script) == values(together[0])
        assert values(script) == pytest.approx(values(one), rel=1e-5, abs=1e-6)
        for name, steps in script.steps.items():
            assert steps.applied_steps == one.steps[name].applied_steps
            assert steps.loss == pytest.approx(one.steps[name].loss, rel=1e-5)
    first = max(together, key=lambda script: len(script.losses))
    assert [name for name, _ in first.losses] == [name for name, _ in one.losses]
    assert [loss for _, loss in first.losses] == pytest.approx(
        [loss for _, loss in one.losses], rel=1e-5
    )


def some_of(cases):
    """Every fifth: any two values of different parts meet in one of these; the rest with --all."""
    return [
        pytest.param(*case, marks=[pytest.mark.matrix] if number % 5 else [])
        for number, case in enumerate(cases)
    ]


OPERATIONS = {
    "synchronous": ("totals.0", "gradients.0.0", "critic.gradients.0.0"),
    "reproducible": ("grains", "grains.0", "critic.grains.0"),
}
FAULTS = [
    (mode, order, (1, operation, turn, when))
    for mode, operations in OPERATIONS.items()
    for operation in (*operations, "which model")
    for order in ("the other first", "the other last", "twice, around it")
    for turn in (1, 2, 4)
    for when in ("before", "after")
]


@pytest.mark.parametrize(("mode", "order", "fault"), some_of(FAULTS))
def test_a_fault_between_any_two_steps_costs_none(mode, order, fault):
    """Whoever missed a step gets it from who has applied it; no step is taken twice."""
    hub = Hub(3, [fault])
    scripts = run_together(hub, lambda context: Script(context, order, **MODES[mode]).run())
    assert hub.fired == {fault}
    one = alone(mode, order)
    for script in scripts:
        assert values(script) == values(scripts[0])
        assert values(script) == pytest.approx(values(one), rel=1e-5, abs=1e-6)
        for name, steps in script.steps.items():
            assert steps.applied_steps == one.steps[name].applied_steps


DEATHS = [
    (order, unpack, (worker, operation, turn, when))
    for order in ("the other first", "the other last")
    for unpack in ("whole", "unpacked", "changed")
    for worker in (0, 1)
    for when in ("unsent", "sent")
    for operation, turn in (("totals.0", 3), ("totals.0", 4), ("critic.gradients.0.0", 3))
]


@pytest.mark.parametrize(("order", "unpack", "fault"), some_of(DEATHS))
def test_the_others_take_the_dead_ones_samples(order, unpack, fault):
    """Shares change in the middle of a body, also of one that has made something of its batch."""
    hub = Hub(3, [fault])

    def run(context):
        return Script(context, order, unpack=unpack).run()

    scripts = run_together(hub, run)
    assert hub.fired == {fault}
    assert len(scripts) == 2
    one = alone("synchronous", order)
    for script in scripts:
        assert values(script) == values(scripts[0])
        assert values(script) == pytest.approx(values(one), rel=1e-5, abs=1e-6)


def test_who_joins_skips_what_is_applied():
    """Its copy of the state may be from between two steps on a batch."""
    hub = Hub(3, [(0, "critic.gradients.0.0", 3, "before")])
    scripts = run_together(hub, lambda context: Script(context, "twice, around it").run())
    state = scripts[0].trainer._state.position.state_dict()
    assert state["steps_on_batch"] == 0
    assert state["added_models"] == {"critic": [2 * 9, scripts[0].steps["critic"].loss]}


def plain_model():
    """Nothing special."""
    return nn.Linear(3, 1)


def sgd(model):
    """An optimizer of it."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def nothing(_script):
    """What is wrong has been done before."""


MISUSED = {
    "outside of the loop": ("no step is under way", nothing),
    "the trainer's step is missing": ("called 0 times", lambda script: script.one("critic")),
    "the trainer's step twice": ("called 2 times", lambda script: script.one("lead", 2)),
    "by micro-batches": (
        "trainer.micro_batches: with several models",
        lambda script: list(script.trainer.micro_batches(*script.batch)),
    ),
    "by apply": ("no step is under way", lambda script: script.trainer.apply()),
    "after the loop has begun": (
        "before trainer.epochs",
        lambda script: script.trainer.add_model("late", *late()),
    ),
}


def late():
    """A model and its optimizer."""
    model = plain_model()
    return model, sgd(model)


@pytest.mark.parametrize("case", MISUSED)
def test_what_would_not_be_a_step_is_refused(case):
    """One line that says what to do."""
    words, act = MISUSED[case]

    def run(context):
        script = Script(context)
        if case == "outside of the loop":
            script.steps["critic"].step(script.loss("critic"), X)
        for _ in script.trainer.epochs(1):
            for batch in script.trainer.batches():
                script.batch = batch
                act(script)

    with pytest.raises(UserError, match=words):
        run_together(Hub(1), run)


def test_workers_that_call_other_models_end_in_one_line():
    """Where somebody has no samples the order is announced; elsewhere the digests differ."""

    def run(context):
        script = Script(context)
        if context.collective.rank == 1:
            script.order = tuple(reversed(script.order))
        return script.run()

    with pytest.raises((UserError, JobError), match=r"order must be|takes step"):
        run_together(Hub(2), run)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("turn", [1, 2])
def test_a_fault_in_an_evaluation_at_the_end_of_the_body(turn, when):
    """Who has not heard the result takes it over, before the batch is left."""
    fault = (1, "metrics", turn, when)
    hub = Hub(2, [fault])

    def run(context):
        script = Script(context)
        script.results = []
        for _ in script.trainer.epochs(1):
            for batch in script.trainer.batches():
                script.take(batch)
                script.results.append(script.evaluate()["mean"])
        return script

    scripts = run_together(hub, run)
    assert hub.fired == {fault}
    # The last step has one sample: the second worker does not run the body for it.
    assert scripts[1].results == scripts[0].results[: len(scripts[1].results)]


@pytest.mark.parametrize("num_before", [0, 1])
@pytest.mark.parametrize("turn", [2, 4])
@pytest.mark.parametrize("order", [("critic", "lead"), ("lead", "critic")])
def test_a_body_that_runs_again_counts_its_evaluation_once(order, turn, num_before):
    """Between two steps on a batch, of which the second is lost with a worker.

    What was evaluated before the loop is another evaluation, and comes first.
    """
    fault = (1, "totals.0", turn, "unsent")
    hub = Hub(3, [fault])

    def run(context):
        script = Script(context, unpack="changed")
        script.bodies = 0
        script.numbers = []
        script.results = set()
        for _ in script.trainer.epochs(1):
            for _ in range(num_before):
                script.evaluate()
            for batch in script.trainer.batches():
                script.bodies += 1
                for name in order:
                    script.order = (name,)
                    script.take(batch)
                    if name == order[0]:
                        found = script.evaluate()["mean"]
                        step = script.trainer._state.position.applied_steps
                        number = script.trainer._evaluations.number
                        script.numbers.append(number - (num_before if step == 0 else 0))
                        script.results.add((script.trainer._state.position.step_in_epoch, found))
        return script

    scripts = run_together(hub, run)
    assert hub.fired == {fault}
    assert max(script.bodies for script in scripts) > 3, "no body has run again"
    assert {number for script in scripts for number in script.numbers} == {1}
    for script in scripts:  # of one batch there is one result, whoever asks again
        steps = [step for step, _ in script.results]
        assert sorted(steps) == sorted(set(steps))


def test_two_faults_in_a_step_and_the_evaluation_after_it():
    """Steps that came with another's state count as taken, for evaluations too."""
    faults = [(1, "totals.0", 3, "after"), (1, "metrics", 2, "after")]
    hub = Hub(2, faults)

    def run(context):
        script = Script(context)
        found = []
        for _ in script.trainer.epochs(EPOCHS):
            for batch in script.trainer.batches():
                script.take(batch)
            found.append(script.evaluate()["mean"])
        return found

    first, second = run_together(hub, run)  # one may see an epoch twice, as another was ahead
    assert hub.fired == set(faults)
    assert first[-1] == second[-1]


def test_a_schedule_that_the_script_advances_as_well_is_refused():
    """It would be advanced twice as far."""

    def run(context):
        script = Script(context)
        for _ in script.trainer.epochs(1):
            for batch in script.trainer.batches():
                script.take(batch)
                script.schedule.step()

    with pytest.raises(UserError, match="the script has called the scheduler"):
        run_together(Hub(1), run)


def test_a_break_by_applied_steps_loses_no_step():
    """Also where a worker dies in the step before, and the body runs again."""
    fault = (1, "totals.0", 6, "unsent")
    hub = Hub(3, [fault])

    def run(context):
        script = Script(context, "the other first", unpack="changed")
        for _ in script.trainer.epochs(1):
            for batch in script.trainer.batches():
                script.take(batch)
                if script.trainer.applied_steps >= 2:
                    break
            break
        return script

    scripts = run_together(hub, run)
    for script in scripts:
        assert [steps.applied_steps for steps in script.steps.values()] == [2, 2]
        assert values(script) == values(scripts[0])
