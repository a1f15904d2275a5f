"""`hetero-hvd trial`: train, and measure which nodes and which settings are worth it."""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import get_args

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.mistakes import did_you_mean
from hetero_hvd.cli.train import run
from hetero_hvd.core.advice.advice import Goal
from hetero_hvd.core.advice.placement_trial import TrialSettings
from hetero_hvd.core.advice.setting_trial import SETTINGS, SettingTrial
from hetero_hvd.driver.placement.measurement import Measurement
from hetero_hvd.driver.termination import NUMBERS, Termination
from hetero_hvd.errors import UserError
from hetero_hvd.exit_codes import EXIT_USER_ERROR, SIGNALLED

USAGE = "%(prog)s [options] [--] train.py [arguments]"
TAKES_SCRIPT = True
HELP = """\
Train as `hetero-hvd run` does, and measure meanwhile which nodes are worth it.

While the job trains, nodes leave and come back; nothing is restarted, and every sample counts. What
was found is told as a table, kept beside the run's folder, and used by `hetero-hvd advise`.

Settings that change the numbers are measured before that, by short jobs from the state that the job
begins with; whatever they write into their folder is thrown away.
"""
DEVICES = "devices"
NAMES = (DEVICES, *SETTINGS)
MAX_DIGITS = 9


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    settings = TrialSettings()
    group = command.add_argument_group("the trial, see docs/operations/advice.md")
    group.add_argument(
        "--over",
        type=_names,
        default=(DEVICES,),
        metavar="NAMES",
        help=f"what is tried, with commas between: {', '.join(NAMES)} (default: {DEVICES})",
    )
    group.add_argument(
        "--steps",
        type=_count,
        default=settings.num_steps,
        metavar="N",
        help="of each placement and setting in each round (default: %(default)s)",
    )
    group.add_argument(
        "--for",
        dest="goal",
        choices=get_args(Goal),
        default=settings.goal,
        help="by what placements are compared (default: %(default)s)",
    )
    run.add_arguments(command)


def act(arguments: argparse.Namespace) -> int:
    """Measure and train; gives the training's exit code."""
    names = tuple(name for name in arguments.over if name != DEVICES)
    if names:
        for flag in ("slurm", "ray", "slurm_agents"):
            if getattr(arguments, flag) not in (None, False):
                raise UserError(
                    f"--over {','.join(names)}: needs jobs of its own, which --"
                    f"{flag.replace('_', '-')} gives no place to; leave one of them out"
                )
        if code := _try_settings(arguments, SettingTrial(names)):
            return code
    trial = TrialSettings(goal=arguments.goal, num_steps=arguments.steps)
    return run.act(arguments, trial if DEVICES in arguments.over else None)


def _try_settings(arguments: argparse.Namespace, trial: SettingTrial) -> int:
    """Measure each by short jobs; gives the exit code of one that ends it all, else 0."""
    with Termination(), tempfile.TemporaryDirectory(prefix="hetero-hvd-trial-") as folder:
        for index, (number, name) in enumerate(trial.due()):
            measurement = Measurement(trial.options[name], arguments.steps)
            code, why = _run_one(arguments, measurement, Path(folder) / str(index))
            is_interrupted = code - SIGNALLED in NUMBERS
            if is_interrupted or (code and not measurement.is_of_options):
                return code
            if math.isfinite(speed := measurement.samples_per_second):
                show(f"trial: {name}: {speed:.4g} samples/s, round {number + 1}")
                trial.measured(number, name, speed)
            else:
                trial.refused(name, why)
    for line in trial.in_words():
        show(f"trial: {line}")
    return 0


def _run_one(
    arguments: argparse.Namespace, measurement: Measurement, folder: Path
) -> tuple[int, str]:
    """A job in a folder of its own that ends as soon as it has measured."""
    own = vars(arguments) | {
        "output": str(folder),
        "checkpoint_seconds": "0",
        "checkpoint_url": f"file://{folder}/checkpoints",
        "export": "",
    }
    try:
        code = run.act(argparse.Namespace(**own), measurement)
    except UserError as error:
        if not measurement.is_of_options:
            raise
        return EXIT_USER_ERROR, str(error)
    return code, f"the job ended first, with exit code {code}"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in NAMES:
            question = did_you_mean(name, NAMES) or f"; there are {', '.join(NAMES)}"
            raise argparse.ArgumentTypeError(f"{name!r} cannot be tried{question}")
    return names


def _count(text: str) -> int:
    if not (
        text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS and 0 < int(text) <= 10**6
    ):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from 1 to 1000000")
    return int(text)
