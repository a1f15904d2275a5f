"""`hetero-hvd submit --to slurm|kubernetes`: the same job for the queue of a larger cluster."""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hetero_hvd.cli.deploy.kubernetes import first_steps
from hetero_hvd.cli.lines import show
from hetero_hvd.cli.settings import flags_of
from hetero_hvd.config.effective_settings import scalar_text
from hetero_hvd.config.paths import some_path
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.folder import FolderContents, write_folder
from hetero_hvd.deploy.handover.handed_job import UNMAPPED, HandedJob, check_mapped
from hetero_hvd.deploy.handover.kueue_handover import kubernetes_job
from hetero_hvd.deploy.handover.slurm_handover import TREE, slurm_job
from hetero_hvd.deploy.kubernetes.manifests import files as manifests_of
from hetero_hvd.deploy.kubernetes.options import KubernetesJob
from hetero_hvd.deploy.slurm import SlurmDeployment, slurm_contents
from hetero_hvd.errors import AllWrong, JobError, TryAgainError, UserError
from hetero_hvd.slurm.agent_jobs import AFTER, BEFORE, of_no_job
from hetero_hvd.slurm.programs import ask

MAX_STEM = 30
IGNORED = "*\n"
"""For git, and so for what is submitted next: the folders of jobs are no part of it."""

CHECKPOINTS = "checkpoint_url"
"""The setting that manifests have to know of."""


class Numbers(NamedTuple):
    """What `submit` has read of its options.

    Attributes:
        fewest: Devices.
        most: Devices; None: as many as the fewest.
        retries: None: not said, as are all that follow.
        after: Jobs that must have succeeded before.
        deadline_seconds: From now on.
        time_limit_seconds: With devices.
        idle_limit_seconds: Of devices that do nothing.
    """

    fewest: int
    most: int | None
    retries: int | None
    after: list[int]
    deadline_seconds: float | None
    time_limit_seconds: float | None
    idle_limit_seconds: float | None


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    group = command.add_argument_group("for the queue of a larger cluster, see docs/guide/queue.md")
    group.add_argument(
        "--to",
        choices=sorted(UNMAPPED),
        help="write the job, and give it to Slurm; or write it for Kubernetes with Kueue",
    )
    group.add_argument(
        "--folder",
        type=some_path,
        metavar="DIR",
        help="with --to: where it is written, on a file system that all nodes see (default: a new "
        "one in submitted/)",
    )
    group.add_argument(
        "--sbatch",
        metavar="OPTIONS",
        help="with --to slurm: of sbatch, for all of the job, such as '--account=a --mem=32G'",
    )
    group.add_argument(
        "--image",
        metavar="NAME@sha256:DIGEST",
        help="with --to kubernetes: an image with hetero_hvd, pinned by its digest",
    )


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse what our own queue, or that of the other cluster, does not know.

    Raises:
        UserError: Such an option was given.
    """
    if arguments.to is not None:
        given = [name for name in UNMAPPED[arguments.to] if getattr(arguments, name)]
        check_mapped(arguments.to, given, given_settings(arguments).keys())
        return
    given = [name for name in ("folder", "sbatch", "image") if getattr(arguments, name) is not None]
    if given:
        raise UserError(*(f"--{name}: goes with --to only" for name in given))


def check(arguments: argparse.Namespace, numbers: Numbers) -> None:
    """Refuse what the other queue has nothing for; nothing is packed or written.

    Raises:
        UserError: There are such parts; names each.
    """
    from hetero_hvd.discovery.submission.job_settings import check_settings  # noqa: PLC0415 - not for all

    wrong = AllWrong()
    needs = []
    for text in arguments.needs:
        with wrong.part():
            needs.append(DeviceNeed.parse(text))
    with wrong.part():
        check_settings(_settings_text(arguments))
    with wrong.part():
        _described(_handed(arguments, numbers, _folder(arguments), needs), arguments, numbers)
    wrong.check()


def _described(
    job: HandedJob, arguments: argparse.Namespace, numbers: Numbers
) -> SlurmDeployment | KubernetesJob:
    """What is to be written for the other queue.

    Raises:
        UserError: It has nothing for parts of it.
    """
    if arguments.to == "slurm":
        return slurm_job(job, arguments.sbatch or "", numbers.after)
    wrong = AllWrong()
    given = getattr(arguments, CHECKPOINTS)
    url = wrong.of(lambda: checks.checkpoint_url(given), None)
    with wrong.part():
        made = kubernetes_job(
            job,
            image=arguments.image,
            tries=numbers.retries,
            time_limit_seconds=numbers.time_limit_seconds,
            checkpoint_url=url,
        )
    wrong.check()
    return made


def hand_over(arguments: argparse.Namespace, numbers: Numbers) -> None:
    """Write the job, and submit it where that can be done from here.

    Raises:
        UserError: A part of it cannot be; nothing is left of it then.
        JobError: Slurm does not take it; likewise.
    """
    folder = _folder(arguments)
    was_there = folder.exists()
    try:
        job = _job(arguments, numbers, folder)
        made = _described(job, arguments, numbers)
        if isinstance(made, SlurmDeployment):
            _to_slurm(job, made)
        else:
            _to_kubernetes(job, made)
    except (UserError, OSError):
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if folder.parent == _above():
        (folder.parent / ".gitignore").write_text(IGNORED)


def given_settings(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings of `hetero-hvd run` that were given, by name."""
    return {name: value for name, value in flags_of(arguments).items() if value is not None}


def _job(arguments: argparse.Namespace, numbers: Numbers, folder: Path) -> HandedJob:
    """What was submitted, as it is now."""
    from hetero_hvd.discovery.submission.queue_client import pinned_job  # noqa: PLC0415 - not for all

    words, packed = pinned_job(arguments.command, is_command=False)
    needs = list(map(DeviceNeed.parse, arguments.needs))
    found = _handed(arguments, numbers, folder, needs)
    return replace(found, command=tuple(words), packed=packed)


def _handed(
    arguments: argparse.Namespace, numbers: Numbers, folder: Path, needs: Sequence[DeviceNeed]
) -> HandedJob:
    """What was asked for, before anything is packed."""
    from hetero_hvd.discovery.submission.job_settings import as_flag  # noqa: PLC0415 - not for all

    return HandedJob(
        name=checks.name("--folder", folder.name),
        folder=folder,
        command=tuple(arguments.command),
        python=sys.executable,
        packed=b"",
        pool=arguments.pool,
        priority=arguments.priority,
        min_devices=numbers.fewest,
        max_devices=numbers.most or numbers.fewest,
        needs=tuple(needs),
        flags=tuple(map(as_flag, _settings_text(arguments).items())),
    )


def _settings_text(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings that the driver is told by its flags, as a file has them."""
    settings = given_settings(arguments)
    if arguments.to == "kubernetes":
        settings.pop(CHECKPOINTS, None)
    return {name: scalar_text(value) for name, value in settings.items()}


def _above() -> Path:
    """Of the folders of jobs for which none is named."""
    from hetero_hvd.discovery.submission.working_tree import HANDED_OVER  # noqa: PLC0415 - see above

    return Path.cwd() / HANDED_OVER


def _folder(arguments: argparse.Namespace) -> Path:
    """Where it is written; a new one has the script's name and a number."""
    if arguments.folder is not None:
        return Path(os.path.abspath(arguments.folder))  # noqa: PTH100 - as all nodes know it
    script = Path(arguments.command[0] if arguments.command else "job")
    stem = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:MAX_STEM]
    stem = stem if stem[:1].isalpha() else f"job-{stem}".strip("-")
    ends = (each.name.rpartition("-")[2] for each in _above().glob(f"{stem}-*"))
    return _above() / f"{stem}-{1 + max((int(end) for end in ends if end.isdecimal()), default=0)}"


def _to_slurm(job: HandedJob, deployment: SlurmDeployment) -> None:
    """Write its folder, with the working tree, and submit the driver, which submits the agents."""
    from hetero_hvd.discovery.submission.working_tree import unpack  # noqa: PLC0415 - not for all

    write_folder(job.folder, slurm_contents(deployment))
    unpack(io.BytesIO(job.packed), job.folder / TREE)
    environment = of_no_job(os.environ)
    for path in sorted(job.folder.glob(f"{BEFORE}*{AFTER}")):
        _sbatch(environment, "--test-only", str(path))
    answer = _sbatch(environment, "--parsable", str(job.folder / "driver.sh"))
    number = answer.strip().partition(";")[0]
    show(f"job {number} of Slurm")
    show(f"{job.folder / 'logs' / 'driver.txt'} will say how it goes", file=sys.stderr)


def _sbatch(environment: dict[str, str], *words: str) -> str:
    """What sbatch answers.

    Raises:
        UserError: It does not take an option.
    """
    try:
        return ask("sbatch", *words, environment=environment)
    except TryAgainError:
        raise
    except JobError as error:
        raise UserError(f"--to slurm: {error}") from error


def _to_kubernetes(job: HandedJob, made: KubernetesJob) -> None:
    """Write its manifests; whoever may talk to the cluster gives them to it."""
    for path in write_folder(job.folder, FolderContents(files=manifests_of(made))):
        show(str(path))
    for line in ("next:", *first_steps(made), f"  kubectl create -f {job.folder}"):
        show(line)
