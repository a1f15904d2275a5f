"""The progress bar of a worker that may become the leader in the middle of training."""

from __future__ import annotations

from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback


class LateProgressBar(ProgressCallback):
    """transformers' bar, which is opened when this worker leads, and not at the beginning only."""

    training_bar: Any

    def on_step_end(  # type: ignore[no-untyped-def]  # as in transformers
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **more,  # noqa: ANN003
    ) -> None:
        """One more step is applied."""
        if state.is_world_process_zero and self.training_bar is None:
            super().on_train_begin(args, state, control, **more)  # type: ignore[no-untyped-call]
        super().on_step_end(args, state, control, **more)  # type: ignore[no-untyped-call]

    def on_train_end(  # type: ignore[no-untyped-def]  # as there
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **more,  # noqa: ANN003
    ) -> None:
        """Training is over; a worker that leads only now has no bar."""
        if self.training_bar is not None:
            super().on_train_end(args, state, control, **more)  # type: ignore[no-untyped-call]
