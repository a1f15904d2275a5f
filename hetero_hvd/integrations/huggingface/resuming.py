"""From which of transformers' checkpoints a training goes on: the newest that is whole.

transformers takes the folder with the highest number. A run that is killed while it writes leaves a
part of a checkpoint there, and one that others are still writing looks the same to who joins them.
"""

from __future__ import annotations

import json
import logging
import re
import zipfile
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError, safe_open
from transformers.trainer import (
    OPTIMIZER_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from transformers.utils.peft_utils import ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME

from hetero_hvd.errors import UserError

logger = logging.getLogger(__name__)

ZIP = b"PK"
"""With which begins what torch saves; its files of old are no archives."""

CHECKPOINT = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")

WEIGHTS = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME)
"""Files of which a checkpoint has one; several adapters have folders of their own."""

INDICES = (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME)
"""Of weights in several files, in the order in which transformers looks."""

OTHERS = (OPTIMIZER_NAME, SCHEDULER_NAME, SCALER_NAME)
"""Files that a checkpoint has if its trainer had such a thing and keeps more than the weights."""


class ResumingTrainer(transformers.Trainer):
    """Goes on from whole checkpoints only; see `HuggingFaceTrainer`."""

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,  # noqa: ANN401 - as in transformers
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """As there; of True, a checkpoint that is not whole is passed over.

        Raises:
            UserError: There is no whole one, or the one that is named is not whole.
        """
        if resume_from_checkpoint is True:
            folder = Path(self.args.output_dir or "")
            resume_from_checkpoint = str(newest_whole(folder, with_weights=self._has_weights))
        elif resume_from_checkpoint:
            named = Path(resume_from_checkpoint)
            if why := self._why_not_whole(named):
                raise UserError(
                    f"resume_from_checkpoint: {named} is no whole checkpoint: {why}: name another "
                    "one, or say True for the newest that is whole"
                )
        if resume_from_checkpoint:
            tell_if_weights_only(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def _why_not_whole(self, checkpoint: Path) -> str:
        return why_not_whole(checkpoint, with_weights=self._has_weights)

    @property
    def _has_weights(self) -> bool:
        """Whether the files are those of transformers: a subclass may read its own."""
        theirs: Any = transformers.Trainer
        return type(self)._load_from_checkpoint is theirs._load_from_checkpoint  # noqa: SLF001


def newest_whole(folder: Path, *, with_weights: bool = True) -> Path:
    """The newest checkpoint in a folder that is whole; tells which are passed over.

    Args:
        folder: The output folder.
        with_weights: As of `why_not_whole`.

    Raises:
        UserError: There is none.
    """
    paths = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    found = [(int(match[1]), p) for p in paths if (match := CHECKPOINT.fullmatch(p.name))]
    for _, path in sorted(found, reverse=True):
        why = why_not_whole(path, with_weights=with_weights)
        if not why:
            return path
        logger.warning("resume_from_checkpoint: %s is passed over: %s", path, why)
    raise UserError(
        f"resume_from_checkpoint=True: {folder} has no whole checkpoint-N"
        f"{', only parts of some' if found else ''}: leave it out to train from the beginning"
    )


def tell_if_weights_only(checkpoint: Path) -> None:
    """Say it where the optimizer begins anew, which transformers does without a word.

    Args:
        checkpoint: From which a training goes on.
    """
    if not (checkpoint / OPTIMIZER_NAME).exists():
        logger.warning(
            "resume_from_checkpoint: %s has no %s, as with save_only_model=True: optimizer and "
            "schedule begin anew",
            checkpoint,
            OPTIMIZER_NAME,
        )


def why_not_whole(checkpoint: Path, *, with_weights: bool = True) -> str:
    """What a checkpoint lacks; empty: nothing.

    Args:
        checkpoint: Its folder.
        with_weights: Whether it has the weights in files of transformers.
    """
    if not checkpoint.is_dir():
        return "it is no folder"
    if why := _lack_of_state(checkpoint / TRAINER_STATE_NAME):
        return why
    if with_weights and (why := _lack_of_weights(checkpoint)):
        return why
    others = [path for name in OTHERS if (path := checkpoint / name).exists()]
    return next(filter(None, map(_damage, others)), "")


def _lack_of_state(path: Path) -> str:
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return f"it has no {TRAINER_STATE_NAME}, which is written last"
    except ValueError:
        return f"{TRAINER_STATE_NAME} is cut off"
    is_whole = isinstance(state, dict) and "global_step" in state
    return "" if is_whole else f"{TRAINER_STATE_NAME} says no global_step"


def _lack_of_weights(checkpoint: Path) -> str:
    """One file in whatever folder is enough; an index counts where there is none."""
    folders = (checkpoint, *(path for path in checkpoint.iterdir() if path.is_dir()))
    found = [path for folder in folders for name in WEIGHTS if (path := folder / name).is_file()]
    indices = [path for name in INDICES if (path := checkpoint / name).is_file()]
    if not found and indices:
        try:
            names = set(json.loads(indices[0].read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return "the index of its weights is cut off"
        found = [checkpoint / name for name in sorted(names)]
    return next(filter(None, map(_damage, found)), "") if found else "it has no weights of a model"


def _damage(path: Path) -> str:
    """What of a file can be seen without reading it as a whole; empty: nothing."""
    if not path.is_file():
        return f"it has no {path.name}"
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                return ""
        except SafetensorError:
            return f"{path.name} is cut off"
    with path.open("rb") as file:
        begins = file.read(len(ZIP))
    is_cut_off = not begins or (begins == ZIP and not zipfile.is_zipfile(path))
    return f"{path.name} is cut off" if is_cut_off else ""
