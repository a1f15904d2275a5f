"""Durable checkpoints: written beside the training, whole or not at all, checked when read.

Rank 0 writes, or who has evaluated without it: the two may be at it at once. On the step path the
state is copied to the host's memory, nothing more; a thread serialises and writes it, with its
SHA-256 in a manifest. A copy that is damaged, half a copy, or one that holds more than tensors and
plain data is never taken: the one before is. Where they are kept is a matter of the store.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, BinaryIO

from hetero_hvd.errors import UserError, first_line, job_error
from hetero_hvd.messages import CheckpointWritten
from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints.background import Background, Beside, Copy
from hetero_hvd.worker.recovery.checkpoints.hashed_file import save_hashed
from hetero_hvd.worker.recovery.checkpoints.not_kept import NotKept, Tell, why_not
from hetero_hvd.worker.recovery.checkpoints.reading import Found, newest_first, state_of
from hetero_hvd.worker.recovery.checkpoints.registry import store_at
from hetero_hvd.worker.recovery.checkpoints.room import Room
from hetero_hvd.worker.recovery.checkpoints.store import PREFIX, Manifest
from hetero_hvd.worker.recovery.randomness import randomness, restore_randomness
from hetero_hvd.worker.recovery.replica import Replica, Unreadable, on_host

logger = logging.getLogger(__name__)


class Checkpoints:
    """Writes checkpoints while training goes on, and finds the newest good one.

    Args:
        settings: Where, when and how many.
        replica: What to keep.
        trainer: Which `Trainer` of the script it is of, from 1.
        tell: Called, in the thread that writes, for each one that is whole, or cannot be.

    Attributes:
        store: Where they are kept.
        copy_seconds: What the newest copy of the state has taken.
        beside: Does what the training need not wait for.

    Raises:
        JobError: There is no store of that kind.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        replica: Replica,
        trainer: int = 1,
        *,
        tell: Tell = lambda _: None,
    ) -> None:
        self._settings = settings
        self._run = settings.run
        self._tell = tell
        self._replica = replica
        self._trainer = trainer
        self.store = store_at(settings.folder)
        self._earlier = store_at(settings.resume) if settings.resume else None
        self.copy_seconds = 0.0
        self._background = Background(self._write)
        self.beside = Beside()
        self._room = Room(self.beside)
        self._next_at_seconds = time.monotonic() + settings.every_seconds
        self._best = float("-inf")
        self._is_told_of_best = False
        self._not_kept = NotKept(settings.every_seconds, trainer, tell)

    def why_not_resumed(self) -> str:
        """Why nobody has found what was asked for, and what to do; empty: there was nothing.

        An earlier run may have ended before this trainer had its turn.
        """
        wanted, own = self._settings.resume, self._trainer
        if self._earlier is None:
            return ""
        with _known():
            trainers = {one.manifest.trainer for one in self._of_earlier()}
        if own not in trainers and (trainers or own > 1):
            return ""
        if own == 1 and len(trainers) <= 1:
            return (
                f"--resume: no worker has found a checkpoint in {wanted} that can be read: see "
                "that it is there, or start without --resume to train from the beginning"
            )
        return (
            f"--resume: no worker has found a checkpoint of the script's trainer {own} in {wanted} "
            f"that can be read; delete those of trainer {own} to train it from the beginning, and "
            "the others go on from theirs"
        )

    @property
    def is_writing(self) -> bool:
        """Whether a copy of the state is in memory."""
        return self._background.is_busy

    @property
    def takes_memory(self) -> bool:
        """Whether there is a copy of the state in memory, or room for one."""
        return self.is_writing or self._room.is_used

    @property
    def max_copies(self) -> int:
        """So many are in memory at once while training goes on: the best may wait for another."""
        return 2 if self._settings.best else 1

    def find_series(self) -> None:
        """Write into the series of the job's last start, whether its state is loaded or not.

        Raises:
            JobError: What there is cannot be read; if that may pass, TryAgainError.
        """
        if self._settings.goes_on:
            with _known():
                self._of_the_job()

    def load_newest(self) -> str | None:
        """Take over the newest good checkpoint of this run or job, else of the one to resume.

        One that cannot be read, this time or by this user, is not passed over: its content may be
        as good as ever, and an older one would cost the steps between.

        Returns:
            Where it is; None: there is none.

        Raises:
            JobError: What there is, or the newest, cannot be read; if that may pass, TryAgainError.
            UserError: It is good, but of another script; says what is different.
        """
        self.wait()
        with _known():
            found = self._of_the_job() if self._settings.goes_on else self._own_or_earlier()
        for number, one in enumerate(found, start=1):
            try:
                state = state_of(one)
            except Unreadable as error:
                others = "trying the one before" if number < len(found) else "there is no other"
                logger.warning("%s is not taken: %s: %s", one, error, others)
                continue
            except OSError as error:
                raise job_error(
                    f"{one} cannot be read: {first_line(error)}; correct the way to it, or delete "
                    "it to go on from the one before",
                    error,
                ) from error
            self._check_capability(one)
            try:
                words = self._replica.resume(state)
            except UserError as error:
                raise UserError(f"{one}: {error}") from error
            for line in words:
                logger.warning("%s: %s", one, line)
            restore_randomness(state.get("randomness", {}))
            logger.warning("has found %s: step %d", one, one.manifest.applied_steps)
            return str(one)
        return None

    def _check_capability(self, one: Found) -> None:
        """Refuse to go on with other instructions, which would give other bits.

        Raises:
            UserError: They are others.
        """
        was, own = one.manifest.cpu_capability, self._settings.cpu_capability
        if was and own and was != own:
            raise UserError(
                f"{one}: cpu_capability was {was} and is {own}: a reproducible run keeps to one "
                f"from its first step on; go on with --cpu-capability {was}"
            )
        if own and not was:
            logger.warning(
                "%s: no instruction set is recorded with it: only the steps from here on can be "
                "reproduced",
                one,
            )

    def kept(self) -> str:
        """What is on disk of this run, in words."""
        self.wait()
        try:
            found = self._own()
        except OSError as error:
            return f"which checkpoints there are is not known: {first_line(error)}"
        for one in found:
            return f"the newest checkpoint is of step {one.manifest.applied_steps}: {one}"
        return "no checkpoint was written yet"

    def is_due(self) -> bool:
        """Whether to call `save`; a writer that is still busy is not disturbed."""
        is_time = self._settings.every_seconds and time.monotonic() >= self._next_at_seconds
        return bool(is_time) and not self.is_writing

    def is_ready(self) -> bool:
        """Whether `save` finds its memory; once it is due, that is got beside the next steps."""
        try:
            return self._room.is_ready(self._replica.tensors)
        except UserError:
            return True  # `save` will say what is wrong

    def is_best(self, metrics: Mapping[str, float]) -> bool:
        """Whether these are the best metrics so far; remembers them."""
        name = self._settings.best
        value = metrics.get(name.lstrip("-"))
        if name and value is None and not self._is_told_of_best:
            self._is_told_of_best = True
            there = ", ".join(sorted(metrics)) or "none"
            logger.warning(
                "checkpoint_best: the evaluation has no metric %s; it has: %s",
                name.lstrip("-"),
                there,
            )
        if not name or value is None or not math.isfinite(value):
            return False
        goodness = -value if name.startswith("-") else value
        is_better = goodness > self._best
        self._best = max(self._best, goodness)
        return is_better

    def save(
        self,
        applied_steps: int,
        metrics: Mapping[str, float] | None = None,
        *,
        copies: bool = True,
    ) -> None:
        """Copy the state now, write it beside the training; without memory for that, say so.

        The best state does not wait for what is being written: its copy does, in place of that of a
        best state before which waits still. Any other is due when nothing is written, or the last.

        Args:
            applied_steps: Optimizer steps applied.
            metrics: Those that are the best so far, if it is kept for them.
            copies: Whether the training goes on meanwhile; if not, call `wait` before it does.
        """
        finite = {name: mean for name, mean in (metrics or {}).items() if math.isfinite(mean)}
        if finite:
            self._background.drop_waiting()
        else:
            self.wait()
        state = self.copied(applied_steps, copies=copies)
        if state is not None:
            copy = Copy(state, applied_steps, finite, is_last=not copies)
            self.put(copy._replace(copy_seconds=self.copy_seconds))

    def tried(self) -> None:
        """One is begun, or could not be: the next is due after the usual time."""
        self._next_at_seconds = time.monotonic() + self._settings.every_seconds

    def copied(self, applied_steps: int, *, copies: bool = True) -> dict[str, Any] | None:
        """A copy of the state as it is now; None: there is no memory for it, which is said."""
        self.tried()
        began_at_seconds = time.monotonic()
        try:
            copy = self._room.copy if copies else on_host
            return self._replica.snapshot(copy) | {"randomness": randomness()}
        except (MemoryError, RuntimeError, UserError) as error:  # RuntimeError comes from torch
            self.complain(applied_steps, first_line(error), is_last=not copies)
            return None
        finally:
            self._room.leave()
            self.copy_seconds = time.monotonic() - began_at_seconds

    def put(self, copy: Copy) -> None:
        """Write it beside the training."""
        self._background.put(copy)

    def complain(self, applied_steps: int, why: str, *, is_last: bool) -> None:
        """Tell that a checkpoint was not written, for which the training does not end.

        Args:
            applied_steps: Optimizer steps applied.
            why: In words.
            is_last: Whether no other one will take its place.
        """
        name, _ = self.names_of(applied_steps)
        self._not_kept.add(applied_steps, self.store.place(name), why, is_last=is_last)

    def wait(self) -> None:
        """Until what is being written, or waits for that, is safe, or has failed."""
        with self.beside.hurried():
            self._background.wait()

    def needs_no_room(self) -> None:
        """Whoever writes the next checkpoint, it is not this worker."""
        if self._room.is_used:
            self._room.leave()

    def names_of(self, applied_steps: int) -> tuple[str, str]:
        """What a checkpoint, and the series that it belongs to, are called in the store."""
        which = f"-trainer{self._trainer}" if self._trainer > 1 else ""
        series = f"{self._run}{which}"
        return f"{PREFIX}{applied_steps:012d}-{series}", series

    def _write(self, copy: Copy) -> None:
        state, applied_steps, metrics, begun, is_last, copy_seconds = copy
        name, series = self.names_of(applied_steps)

        def write(file: BinaryIO) -> Manifest:
            hashed = save_hashed(state, file, self.beside)
            return Manifest(
                run=self._run,
                job=self._settings.job,
                applied_steps=applied_steps,
                sha256=hashed.digest.hexdigest(),
                num_bytes=hashed.num_bytes,
                metrics=dict(metrics),
                run_number=self._run_number(),
                trainer=self._trainer,
                cpu_capability=self._settings.cpu_capability,
                parts=() if begun is None else begun.parts,
            )

        try:
            # Of each kind there is one writer at a time.
            if begun is not None:
                is_new = self.store.finish(begun.place, name, write, series=series)
            else:
                kind = f"rated-{series}" if metrics else series
                is_new = self.store.put(name, write, series=kind)
            if metrics and not is_new:  # that step's is there already: it counts as evaluated
                self.store.add_metrics(name, metrics)
        except Exception as error:  # noqa: BLE001 - whatever it is, this state is not kept
            why = why_not(error, state, self.store.written_in())
            self.complain(applied_steps, f"{self.store.place(name)}: {why}", is_last=is_last)
            return
        self._not_kept.over(applied_steps)
        try:
            self._tell_of(name, self._prune(), copy_seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the state is there
            words = "the checkpoint of step %d is written; which others there are is not known: %s"
            logger.warning(words, applied_steps, first_line(error))

    def _tell_of(self, name: str, best: Found | None, copy_seconds: float) -> None:
        for one in self._own():
            if one.name == name:
                metrics = {
                    key: mean for key, mean in one.manifest.metrics.items() if mean is not None
                }
                self._tell(
                    CheckpointWritten(
                        step=one.manifest.applied_steps,
                        path=str(one),
                        num_bytes=one.manifest.total_bytes,
                        metrics=metrics,
                        is_best=best is not None and best.name == name,
                        trainer=self._trainer,
                        copy_seconds=copy_seconds,
                    )
                )

    def _own(self) -> list[Found]:
        """Complete checkpoints of this trainer in this run, newest first."""
        mine = self._run, self._trainer
        found = newest_first(self.store)
        return [one for one in found if (one.manifest.run, one.manifest.trainer) == mine]

    def _own_or_earlier(self) -> list[Found]:
        """Those of this trainer in this run, then those in the run to resume, newest first."""
        earlier = self._of_earlier()
        return self._own() + [one for one in earlier if one.manifest.trainer == self._trainer]

    def _of_earlier(self) -> list[Found]:
        """Those of all trainers in the run to resume, newest first; not other runs' beside them."""
        found = [] if self._earlier is None else newest_first(self._earlier)
        runs = self._settings.resume_runs
        return [one for one in found if not runs or one.manifest.run in runs]

    def _of_the_job(self) -> list[Found]:
        """Those of this trainer in all starts of the job, newest first; joins the last start."""
        job = self._settings.job
        found = newest_first(self.store)
        starts = [one for one in found if job == (one.manifest.job or one.manifest.run)]
        if starts:
            self._run = starts[0].manifest.run
        return [one for one in starts if one.manifest.trainer == self._trainer]

    def _run_number(self) -> int:
        found = [manifest for _, manifest in self.store.listed()]
        own = [m.run_number for m in found if m.run == self._run]
        return own[0] if own else 1 + max((m.run_number for m in found), default=0)

    def _prune(self) -> Found | None:
        """Remove what need not be kept; gives the best one, if one is rated."""
        own = self._own()
        name = self._settings.best
        sign = -1 if name.startswith("-") else 1
        found = [(one.manifest.metrics.get(name.lstrip("-")), one) for one in own]
        rated = [(sign * value, one) for value, one in found if value is not None]
        _, best = max(rated, key=itemgetter(0), default=(None, None))
        for one in own[max(1, self._settings.keep) :]:
            if one is not best:
                self.store.remove(one.name)
        return best


def open_checkpoints(
    settings: CheckpointSettings | None,
    replica: Replica,
    trainer: int,
    tell: Tell,
) -> Checkpoints | None:
    """The checkpoints of a trainer of the script; None where none are wanted."""
    return None if settings is None else Checkpoints(settings, replica, trainer, tell=tell)


@contextmanager
def _known() -> Iterator[None]:
    """Find out which checkpoints there are.

    Raises:
        JobError: That is not possible; if that may pass, TryAgainError.
    """
    try:
        yield
    except OSError as error:
        raise job_error(
            f"which checkpoints there are is not known: {first_line(error)}; correct where they "
            "are kept (checkpoint_url or the output folder), the credentials for it or the way to "
            "it",
            error,
        ) from error
