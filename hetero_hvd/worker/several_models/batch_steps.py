"""The steps of several models on one batch, exactly once through every fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker import arguments
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.comm.named import named
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.micro_batch.split import Loss, is_unpacked
from hetero_hvd.worker.out_of_memory import contribute
from hetero_hvd.worker.recovery.elastic_state import ElasticState
from hetero_hvd.worker.recovery.membership import WorkerMembership
from hetero_hvd.worker.recovery.replica import Trainable
from hetero_hvd.worker.several_models.model_steps import (
    ModelSteps,
    beside,
    check_mode,
    check_models,
    check_name,
)
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.schedule import Schedule
from hetero_hvd.worker.step.training_mode import Script
from hetero_hvd.worker.training_modes import open_mode

LISTENS = -1.0
"""What a worker without samples announces: it does what the others say."""


class AddedModel:
    """A further model of a trainer's loop; `Trainer.add_model` makes it."""

    def __init__(self, models: SeveralModels, steps: ModelSteps) -> None:
        self._models = models
        self._steps = steps

    def step(self, loss_function: Callable[..., Loss], *batch: Any) -> float:  # noqa: ANN401
        """One optimizer step of this model on the batch that `trainer.batches()` has handed out.

        Only this model's parameters get gradients; the other models keep their buffers.

        Args:
            loss_function: As for `Trainer.step`.
            batch: As for `Trainer.step`.

        Returns:
            The mean loss over the global batch, the same number on every worker.

        Raises:
            UserError: No batch is under way.
        """
        name = f"{self._steps.name}.step(loss_function, *batch)"
        arguments.check_function(loss_function, name)
        return self._models.take(self._steps, loss_function, batch)

    @property
    def loss(self) -> float:
        """Mean loss of its last applied step, the same on every worker; NaN before the first."""
        return self._models.loss_of(self._steps)

    @property
    def applied_steps(self) -> int:
        """Steps applied on this model since the start of training, by all workers alike."""
        return self._models.steps_of(self._steps)


class SeveralModels:
    """The models of one trainer, and the steps on the batch under way.

    Args:
        script: What the trainer has been given.
        loader: Its loader, divided.
        lead: The steps of its own model.
        state: This worker's.
        next_part: Gives this worker's next part of the epoch; None at its end.
        step_over: Called with the trainer's loss when all steps on a batch are applied.
        body_begins: Called when the loop's body is about to run, with this worker's part.

    Attributes:
        lead: As above.
    """

    def __init__(
        self,
        script: Script,
        loader: ShareLoader,
        lead: ModelSteps,
        *,
        state: ElasticState,
        next_part: Callable[[], Slice | None],
        step_over: Callable[[float], None],
        body_begins: Callable[[Slice], None],
    ) -> None:
        self._script = script
        self._loader = loader
        self.lead = lead
        self._all = [lead]
        self._state = state
        self._next_part = next_part
        self._step_over = step_over
        self._body_begins = body_begins
        self._part: Slice | None = None
        self._part_of: WorkerMembership | None = None
        self._place = (0, 0)
        self._handed_out: Any = None
        self._handed_part: Slice | None = None
        self._calls = self._lead_calls = 0
        self._again = self._is_given_up = self._is_lead_applied = False
        self._urgent_in: WorkerMembership | None = None

    @property
    def is_used(self) -> bool:
        """Whether there are several."""
        return len(self._all) > 1

    @property
    def models(self) -> list[torch.nn.Module]:
        """All of them."""
        return [each.model for each in self._all]

    def add(
        self,
        name: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        options: Mapping[str, Any],
    ) -> tuple[AddedModel, dict[str, Stateful]]:
        """Train one more; see `Trainer.add_model`.

        Returns:
            The model for the script, and what of it must be equal on all workers.

        Raises:
            UserError: It cannot be trained beside the others; says why.
        """
        what = f"trainer.add_model({name!r})"
        script = beside(self._script, what, model, optimizer, options)
        check_name(what, name, [each.name for each in self._all])
        check_models(what, [*self.models, model])
        script = script._replace(name=name, clock=self.lead.step.passes.clock)
        mode = open_mode(script)
        check_mode(what, mode)
        step = mode.make_step(self._loader)
        pipeline = Pipeline(step, mode, lambda loss: self.applied(steps, loss))
        steps = ModelSteps(name, model, step, pipeline, schedule)
        self._all.append(steps)
        self._state.position.added_models[name] = [0, math.nan]
        parts: dict[str, Stateful | None] = {"model": model, "trainable": Trainable(model)}
        parts |= {"optimizer": optimizer, "scheduler": schedule.scheduler}
        parts |= {"scaler": script.options.scaler, **step.state}
        kept = {f"{name}.{key}": part for key, part in parts.items() if part is not None}
        return AddedModel(self, steps), kept

    def loss_of(self, one: ModelSteps) -> float:
        """Of its last applied step."""
        return float(self._state.position.added_models[one.name][1])

    def steps_of(self, one: ModelSteps) -> int:
        """So many are applied."""
        return int(self._state.position.added_models[one.name][0])

    @property
    def is_lead_applied(self) -> bool:
        """Whether the trainer's own step on the batch under way is applied."""
        return self._is_lead_applied and not self._has_moved_on

    def epoch_over(self) -> None:
        """The schedules go on."""
        for each in self._all:
            each.schedule.advance("epoch")

    def release(self) -> None:
        """Training is over: let go of the models."""
        for each in self._all:
            each.step.release()

    def refuse(self, what: str) -> None:
        """Refuse what serves one model only.

        Raises:
            UserError: There are several.
        """
        if self.is_used:
            raise UserError(f"{what}: with several models each takes its steps by step(...)")

    def bodies(self, part: Slice) -> Iterator[Any]:
        """The batch of a step, for the loop's body.

        Once; again where the body was given up, as the membership had changed; never without
        samples: such a worker does what the others announce.

        Args:
            part: This worker's.
        """
        position = self._state.position
        self._place = (position.epoch, position.applied_steps)
        self._part = part
        self._part_of = self._state.membership
        is_over = False
        while not is_over and (now := self._current()) is not None:
            self._begin_body(now)
            if now.num_samples:
                self._body_begins(now)
                self._leave_schedules()
                yield now.batch
                for each in self._all:
                    each.schedule.check()
                is_over = self._end_body()
            else:
                is_over = self._follow()

    def leave(self) -> None:
        """The script has left the loop over the batches; the steps on the last one count."""
        is_begun = self._part is not None and not self._has_moved_on
        if is_begun and self._state.position.steps_on_batch:
            if not self._is_lead_applied:
                raise UserError(
                    "the loop over trainer.batches() was left before trainer.step had applied the "
                    "trainer's own step: leave it after that, by trainer.applied_steps"
                )
            self._step_over(self._lead_loss)
        self._part = None

    def take(self, one: ModelSteps, loss_function: Callable[..., Loss], batch: Any) -> float:  # noqa: ANN401
        """One step of one model, unless it is applied already; gives its last loss."""
        if self._part is None:
            raise UserError(
                "no step is under way: take the steps of all models in the loop over "
                "trainer.batches()"
            )
        call = self._calls
        self._calls += 1
        self._lead_calls += one is self.lead
        unpacked = is_unpacked(batch, self._handed_out)
        while (part := self._current()) and self._state.position.steps_on_batch <= call:
            if part is not self._handed_part:
                if unpacked is None:  # the script has made something of a part that is another now
                    self._is_given_up = True
                    break
                batch = tuple(part.batch or ()) if unpacked else (part.batch,)
            self._try(one, part, loss_function, batch)
        self._is_lead_applied |= one is self.lead and not self._is_given_up
        self._leave_schedules()
        return self._lead_loss if one is self.lead else self.loss_of(one)

    def applied(self, one: ModelSteps, loss: float) -> None:
        """A step of one model is applied."""
        position = self._state.position
        position.steps_on_batch += 1
        if one is self.lead:
            position.loss = loss
            self._is_lead_applied = True
        else:
            one.schedule.advance("step")
            position.added_models[one.name] = [self.steps_of(one) + 1, loss]

    def _leave_schedules(self) -> None:
        for each in self._all:
            each.schedule.leave()

    @property
    def _lead_loss(self) -> float:
        return self._state.position.loss

    @property
    def _has_moved_on(self) -> bool:
        """Whether the batch is over: another worker was further, or all are at a checkpoint."""
        position = self._state.position
        return self._place != (position.epoch, position.applied_steps)

    def _current(self) -> Slice | None:
        """This worker's part of the batch in the membership of now; None: the body is over."""
        if self._is_given_up or self._has_moved_on:
            return None
        if self._part_of is not self._state.membership:
            self._part = self._next_part()
            self._part_of = self._state.membership
        return self._part

    def _begin_body(self, part: Slice) -> None:
        self._handed_out = part.batch
        self._handed_part = part
        self._calls = self._lead_calls = 0
        self._again = self._is_given_up = self._is_lead_applied = False
        self._urgent_in = None

    def _end_body(self) -> bool:
        """The script has come back; False: it has to run the body again."""
        while (part := self._current()) is not None:
            if self._lead_calls != 1:
                raise UserError(
                    f"trainer.step was called {self._lead_calls} times for the last batch: with "
                    "several models it is called once, the steps of the others as often as needed"
                )
            if self._announced(part, float(len(self._all))) is not None:
                self._finish(part)
                return True
        is_over = self._has_moved_on or self._part is None
        self._is_given_up = False
        return is_over

    def _follow(self) -> bool:
        """Do what the others announce; False: this worker has samples now."""
        while (part := self._current()) is not None and not part.num_samples:
            number = self._announced(part, LISTENS)
            if number is None:
                continue
            if int(number) == len(self._all):
                self._finish(part)
                return True
            self._apply(self._all[int(number)], part)
        return part is None

    def _announced(self, part: Slice, own: float) -> float | None:
        """What all do next. None: the rendezvous broke.

        Asked where some have no samples, and at the end of a body with evaluations, which would
        be gone for a worker that has to take them over.
        """
        is_end = own == len(self._all)
        if not part.num_idle and not (is_end and self._state.position.evaluations):
            return own
        collective = self._state.context.collective
        try:
            with self.lead.step.passes.clock.phase("comm_wait"):
                rows = torch.tensor([[own]], dtype=torch.float64)
                found = collective.wait(collective.gather_rows_async(rows, "which model"))
        except Interrupted as fault:
            self._recover(str(fault))
            return None
        numbers = {number for (number,) in found.tolist() if number != LISTENS}
        if len(numbers) != 1:
            names = ", ".join(self._called(number) for number in sorted(numbers)) or "nothing"
            raise UserError(
                f"the workers call the steps of different models on one batch: {names}: the order "
                "must be the same on all workers"
            )
        return float(numbers.pop())

    def _called(self, number: float) -> str:
        names = ["trainer.step", *(f"{each.name}.step" for each in self._all[1:])]
        return names[int(number)] if number < len(names) else "the end of the loop's body"

    def _try(
        self,
        one: ModelSteps,
        part: Slice,
        loss_function: Callable[..., Loss],
        batch: Any,  # noqa: ANN401
    ) -> None:
        if self._announced(part, float(self._all.index(one))) is not None:
            self._apply(one, part, loss_function, batch)

    def _apply(
        self,
        one: ModelSteps,
        part: Slice,
        loss_function: Callable[..., Loss] | None = None,
        batch: Any = (),  # noqa: ANN401
    ) -> None:
        state = self._state
        collective = named(state.context.collective, one.name)
        is_lead = one is self.lead
        members, context = state.membership.workers, state.context
        one.step.passes.sizing.enter(members, context.settings.node, context.tell)
        one.step.begin(collective, part, again=self._again)
        if loss_function is not None and not self._computed(one, loss_function, batch):
            return
        urgency = state.is_urgent if is_lead else lambda _share, _busy: False
        try:
            with state.last_state.applying():
                result = one.pipeline.take(collective, urgency)
        except Interrupted as fault:
            one.pipeline.discard(collective)
            self._recover(str(fault))
            return
        self._again = result.again
        if is_lead and result.is_taken:
            self._urgent_in = state.membership if result.is_urgent else None

    def _computed(
        self,
        one: ModelSteps,
        loss_function: Callable[..., Loss],
        batch: Any,  # noqa: ANN401
    ) -> bool:
        others = [each for each in self._all if each is not one]
        with ExitStack() as stack:
            for other in others:
                stack.enter_context(other.left_alone())
            return contribute(one.step, self._state, loss_function, batch)

    def _recover(self, why: str) -> None:
        self._again = False
        self._state.recover("fault", why)

    def _finish(self, part: Slice) -> None:
        """All steps on the batch are applied: account for them as for one."""
        clock = self.lead.step.passes.clock
        is_urgent = self._urgent_in is self._state.membership
        self._part = None
        self._step_over(self._lead_loss)
        self._state.step_taken(part.num_samples, clock.take(), is_urgent)
