"""`hetero-hvd deploy slurm DIR`: batch scripts of a driver and agents, for `sbatch`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.train.run import check_script
from hetero_hvd.config import NodeConfig
from hetero_hvd.config.paths import path_text
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.folder import write_folder
from hetero_hvd.deploy.slurm import (
    AgentPool,
    SlurmDeployment,
    read_pool,
    sbatch_options,
    shared_path,
    slurm_contents,
)
from hetero_hvd.errors import JobError, UserError

SUMMARY = "write batch scripts for Slurm: a driver, and agents that are jobs of one node each"
DRIVER_OPTIONS = "--cpus-per-task=2 --mem=4G"
MAX_SECONDS = 24 * 3600
MAX_MINUTES = 30 * 24 * 60


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The flags."""
    add = command.add_argument
    add(
        "--pool",
        action="append",
        required=True,
        metavar="NAME:N[%MOST][:OPTIONS]",
        help="N agents, of which MOST run at once, each a job with these options of sbatch, say "
        "'gpu:4:--constraint=a100 --gpus=2'; may be given again",
    )
    add("--name", default="train", help="of the jobs (default: train)")
    add(
        "--driver",
        default=DRIVER_OPTIONS,
        metavar="OPTIONS",
        help=f"of sbatch, for the driver's job (default: --driver='{DRIVER_OPTIONS}')",
    )
    add(
        "--leave-seconds",
        default="60",
        metavar="SECONDS",
        help="an agent leaves so long before its time limit (default: 60)",
    )
    add(
        "--leave-stagger-seconds",
        default="120",
        metavar="SECONDS",
        help="a part of it, of the agent's own, is added, so that not all leave at once (default: "
        "120)",
    )
    add(
        "--idle-minutes",
        default="30",
        metavar="MINUTES",
        help="an agent ends when no driver has had a worker there for so long (default: 30)",
    )
    add(
        "--python",
        type=path_text,
        default=sys.executable,
        metavar="PATH",
        help="of the interpreter with hetero_hvd, on all nodes (default: this one)",
    )


def write(arguments: argparse.Namespace) -> tuple[list[Path], str]:
    """Check everything, then write; gives the files, and what to do with them.

    Raises:
        UserError: Something is wrong; nothing is written then.
    """
    job = _job(arguments)
    note = _note_of_script(job)
    written = write_folder(job.folder, slurm_contents(job), force=arguments.force)
    if note:
        show(note, file=sys.stderr)
    return written, f"  sh {job.folder / 'submit.sh'}"


def _note_of_script(job: SlurmDeployment) -> str:
    """What is to be known of a script that is not here; empty: it is. Others may write it yet."""
    try:
        check_script(job.command, (NodeConfig(name="each-agent"),))
    except JobError as error:
        return f"note: {error}"
    return ""


def _job(arguments: argparse.Namespace) -> SlurmDeployment:
    if not arguments.command:
        raise UserError("no command: hetero-hvd deploy slurm DIR [options] -- train.py")
    return SlurmDeployment(
        name=checks.name("--name", arguments.name),
        folder=shared_path("DIR", Path(os.path.abspath(arguments.folder))),  # noqa: PTH100 - as all nodes know it
        directory=shared_path("this folder", Path.cwd()),
        python=_python(arguments.python),
        command=checks.command(arguments.command),
        pools=_pools(arguments.pool),
        driver_options=sbatch_options("--driver", arguments.driver, is_driver=True),
        leave_seconds=checks.count("--leave-seconds", arguments.leave_seconds, 0, MAX_SECONDS),
        stagger_seconds=checks.count(
            "--leave-stagger-seconds", arguments.leave_stagger_seconds, 0, MAX_SECONDS
        ),
        idle_seconds=60 * checks.count("--idle-minutes", arguments.idle_minutes, 1, MAX_MINUTES),
    )


def _pools(texts: list[str]) -> tuple[AgentPool, ...]:
    pools = tuple(map(read_pool, texts))
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1 or name == "driver":
            raise UserError(f"--pool {name}: another job has this name; each needs its own")
    return pools


def _python(text: str) -> str:
    if not text.startswith("/"):
        raise UserError(f"--python: found {text!r}, must be an absolute path, as on all nodes")
    return checks.plain_text("--python", text)
