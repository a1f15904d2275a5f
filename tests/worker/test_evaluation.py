"""An evaluation leaves the model as it was, and is over one set."""

from __future__ import annotations

import pytest
import torch
from model_zoo import Counting
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import JobError
from hetero_hvd.messages import Evaluated

LOADER = DataLoader(TensorDataset(torch.randn(12, 3)), 4)


class Frozen(nn.BatchNorm1d):
    """Stays in evaluation mode whatever it is told, as in many detectors."""

    def train(self, mode=True):  # noqa: ARG002
        """Never."""
        return super().train(mode=False)


class Merging(nn.Linear):
    """Changes its weight for an evaluation and back, as those do that merge an adapter into it."""

    def train(self, mode=True):
        """Scale it, to see that it is scaled back."""
        if mode != self.training:
            self.weight.data *= 0.5 if mode else 2.0
        return super().train(mode)


class Careless(Counting):
    """Counts also when it is evaluated."""

    def forward(self, x):
        """Count."""
        self.keep(x)
        return self.linear(x)


def new_model():
    """All kinds, of which one is frozen by hand."""
    model = nn.Sequential(
        nn.BatchNorm1d(3),
        nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)),
        Frozen(3),
        Merging(3, 3),
        Careless(torch.tensor(0)),
    )
    model[1].eval()
    model[1][1].train()
    return model


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("frozen_whole", [False, True])
def test_an_evaluation_leaves_no_trace(fails, frozen_whole):
    """Each module keeps its own mode, and buffers and weights their values; also after an error."""
    model = new_model().train(not frozen_whole) if frozen_whole else new_model()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOADER)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    seen = set()

    def metrics(x):
        seen.update(module.training for module in model.modules())
        if fails:
            raise ZeroDivisionError
        return {"output": model(x).mean()}

    for _ in trainer.epochs(1):
        if fails:
            with pytest.raises(ZeroDivisionError):
                trainer.evaluate(metrics, LOADER)
        else:
            trainer.evaluate(metrics, LOADER)
        break
    assert seen == {False}
    assert [module.training for module in model.modules()] == modes
    assert {n: v.tolist() for n, v in model.state_dict().items()} == {
        n: v.tolist() for n, v in state.items()
    }


def test_an_average_of_the_model_is_evaluated_as_the_model_is():
    """In evaluation mode, though it was left in training mode; its counters stay."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, LOADER, extra_state={"average": average})
    state = {name: value.clone() for name, value in average.state_dict().items()}
    for _ in trainer.epochs(1):
        trainer.evaluate(lambda x: {"output": average(x).mean()}, LOADER)
        break
    assert average.training
    assert {n: v.tolist() for n, v in average.state_dict().items()} == {
        n: v.tolist() for n, v in state.items()
    }


def test_an_evaluation_is_told_of_the_epoch_that_was_trained_last(monkeypatch):
    """After the loop, when it has ended, and at the head of the next epoch."""
    told = []
    monkeypatch.setattr(
        "hetero_hvd.worker.session.worker_context.WorkerContext.tell",
        lambda _, event: told.append(event) if isinstance(event, Evaluated) else None,
    )
    model = nn.Linear(3, 1)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOADER)

    def evaluate():
        trainer.evaluate(lambda x: {"output": model(x).mean()}, LOADER)

    for _ in trainer.epochs(2):
        evaluate()
        for batch in trainer.batches():
            trainer.step(lambda x: model(x).mean(), *batch)
        evaluate()
    evaluate()
    assert [(event.epoch, event.step) for event in told] == [(0, 0), (0, 3), (0, 3), (1, 6), (1, 6)]


def test_a_set_that_is_another_one_on_each_worker_is_refused():
    """As where a script gives each worker its part by itself: parts of parts would be evaluated."""

    def train(context):
        model = nn.Linear(3, 1)
        trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOADER)
        trainer._state._context = context
        own = DataLoader(TensorDataset(torch.ones(4 + context.collective.rank, 3)), 2)
        for _ in trainer.epochs(1):
            trainer.evaluate(lambda x: {"output": model(x).mean()}, own)
            break

    with pytest.raises(
        JobError, match=r"trainer.evaluate: the set has 4, 5 samples on the workers"
    ):
        run_together(Hub(2), train)


def changed(trainer, model, batch):
    """A step on what the script has made of its part."""
    trainer.step(lambda x: model(x).mean(), batch[0] + 0.0)


def by_hand(trainer, model, batch):
    """A step in the script's own loop."""
    for (piece,) in trainer.micro_batches(*batch):
        trainer.backward(model(piece).mean())
    trainer.apply()


def handed_out(trainer, model, batch):
    """A step that is taken again without its body."""
    trainer.step(lambda x: model(x).mean(), *batch)


@pytest.mark.parametrize("bound", [0, 1])
@pytest.mark.parametrize("num_before", [0, 1])
@pytest.mark.parametrize("step", [changed, by_hand, handed_out])
def test_a_body_that_runs_again_counts_its_evaluation_once(step, num_before, bound):
    """The step is lost with a worker; whoever is left has heard the result already.

    What was evaluated before the loop is another evaluation, and comes first.
    """
    late = {"staleness_warmup_steps": 0}
    options = {"staleness_bound": bound, **late} if bound else {}

    def run(context):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, optimizer, LOADER, **options)
        trainer._state._context = context
        bodies, numbers = [], set()
        for _ in trainer.epochs(1):
            for _ in range(num_before):
                trainer.evaluate(lambda x: {"output": model(x).mean()}, LOADER)
            for batch in trainer.batches():
                trainer.evaluate(lambda x: {"output": model(x).mean()}, LOADER)
                place = trainer._state.position.applied_steps
                bodies.append(place)
                numbers.add(trainer._evaluations.number - (num_before if place == 0 else 0))
                step(trainer, model, batch)
        return bodies, numbers

    undisturbed = Hub(3)
    run_together(undisturbed, run)
    names = [name for _, name, _ in undisturbed.posts if name.startswith("totals")]
    fault = (1, names[0], 2, "unsent")
    hub = Hub(3, [fault])
    results = run_together(hub, run)
    assert hub.fired == {fault}
    assert len(results) == 2
    if step is not handed_out:
        assert max(len(bodies) for bodies, _ in results) > 3, "no body has run again"
    assert {number for _, numbers in results for number in numbers} == {1}
