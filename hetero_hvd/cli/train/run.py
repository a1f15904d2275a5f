"""`hetero-hvd run`: train on all nodes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from shutil import which

from hetero_hvd.cli.mistakes import did_you_mean
from hetero_hvd.cli.settings import add_nodes_file, add_settings, load
from hetero_hvd.cli.train import ray_job, slurm_agents, slurm_job
from hetero_hvd.cli.watch.run_argument import HELP as HELP_OF_A_RUN
from hetero_hvd.cli.watch.run_argument import run_of
from hetero_hvd.config import ClusterConfig, NodeConfig, NodesFile
from hetero_hvd.config.paths import own_path
from hetero_hvd.config.value_types import CHECKPOINT_URL, TAG_NAME
from hetero_hvd.config.variables import RECORD_SETTINGS, RecordConfig, given
from hetero_hvd.core.advice.placement_trial import TrialSettings
from hetero_hvd.driver.ending import Lender
from hetero_hvd.driver.output.terminal import TerminalStyle
from hetero_hvd.driver.placement.measurement import Measurement
from hetero_hvd.driver.termination import Termination
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.exit_codes import SIGNALLED
from hetero_hvd.probes.other_launchers import started_by
from hetero_hvd.probes.training_packages import require_training
from hetero_hvd.run.records.earlier_run import EarlierRun, earlier_run, is_url, run_of_folder

USAGE = "%(prog)s [options] [--] train.py [arguments]"
TAKES_SCRIPT = True
HELP = """\
Start one worker on each slot of nodes.yaml, train, and balance the shares.

After the options, or after `--`, comes the training script with its arguments, or any other
command. A first word that ends in .py is run by each node's own interpreter (nodes[].python),
anything else as it stands.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_nodes_file(command)
    command.add_argument(
        "--resume",
        type=_run_or_url,
        metavar="RUN",
        help="go on from the newest checkpoint of an earlier run, in its folder unless --output "
        f"names another: {HELP_OF_A_RUN}, or the checkpoint_url that it had; "
        f"{slurm_job.AUTO!r}: of an earlier start with the same --output, or of the same Slurm "
        "job, if there is one",
    )
    command.add_argument("--name", default="", metavar="TEXT", help="what to call this run")
    command.add_argument(
        "--tag",
        action="append",
        default=[],
        type=tag,
        metavar="NAME=VALUE",
        help="what this run tries, for `hetero-hvd runs --where`; may be given several times",
    )
    _add_output(command)
    slurm_job.add_arguments(command)
    slurm_agents.add_arguments(command)
    ray_job.add_arguments(command)
    add_settings(command)


def _add_output(command: argparse.ArgumentParser) -> None:
    """How much is said, and how."""
    verbosity = command.add_mutually_exclusive_group()
    verbosity.add_argument(
        "-q",
        "--quiet",
        dest="verbosity",
        action="store_const",
        const="quiet",
        default="normal",
        help="only what the script prints, what goes wrong, and how it ended",
    )
    verbosity.add_argument(
        "-v",
        "--verbose",
        dest="verbosity",
        action="store_const",
        const="verbose",
        default="normal",
        help="also what goes to logs/driver.log, and on a terminal the lines about steps",
    )
    command.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="whether colours tell what lines mean (default: auto: on a terminal, unless NO_COLOR "
        "is set)",
    )


def _run_or_url(text: str) -> Path | str:
    """The folder of a run, or the URL of checkpoints.

    Raises:
        argparse.ArgumentTypeError: It is a URL where none can be.
    """
    if not is_url(text):
        return run_of(text)
    try:
        return CHECKPOINT_URL.read(text)  # type: ignore[no-any-return] # a text
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {CHECKPOINT_URL.allowed}") from error


def tag(text: str) -> tuple[str, str]:
    """Name and value of a tag.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    name, mark, value = text.partition("=")
    if not (mark and TAG_NAME.fullmatch(name) and value.isprintable()):
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be NAME=VALUE on one line, the name of letters, digits and '_'"
        )
    return name, value


def act(arguments: argparse.Namespace, trial: TrialSettings | Measurement | None = None) -> int:
    """Train; gives the training's exit code.

    Args:
        arguments: Of the command line.
        trial: See `run_job`.
    """
    with Termination() as termination:
        code = _act(arguments, termination, trial)
    if isinstance(trial, Measurement) and termination.number:  # though it was ending by itself
        return SIGNALLED + termination.number
    return code


def _act(
    arguments: argparse.Namespace,
    termination: Termination,
    trial: TrialSettings | Measurement | None,
) -> int:
    command = arguments.command
    if not command:
        name = "run" if trial is None else "trial"
        raise UserError(f"no command: hetero-hvd {name} [options] train.py [arguments]")
    if not arguments.name.isprintable():
        raise UserError(f"--name {arguments.name!r}: must be one line of text")
    check_started_once(os.environ)
    ray_job.check_flags(arguments)
    if arguments.ray:
        slurm_job.check_flags(arguments)
        require_training("hetero-hvd run")
        job = ray_job.RayJob(arguments)
        check_script(command, job.stand_ins)
        with termination.keeping(job):
            resume = _resumed(arguments.resume, job.nodes_file.current.job.output)
            return _train(arguments, job.nodes_file, resume, termination, trial=trial)
    inside = _lender(arguments)
    if inside is None:
        nodes_file = load(arguments)
        resume = _resumed(arguments.resume, nodes_file.current.job.output)
    else:
        if isinstance(inside, slurm_agents.SlurmAgents):
            resume = inside.same_run()
        else:
            resume = inside.resumed(arguments.resume)
        nodes_file = inside.nodes_file  # as it is now: all starts of a run have one folder
    check_script(command, nodes_file.current.nodes)
    check_traced(nodes_file.current)
    require_training("hetero-hvd run")
    with termination.keeping(inside) if inside else nullcontext():
        return _train(arguments, nodes_file, resume, termination, lender=inside, trial=trial)


def _train(
    arguments: argparse.Namespace,
    nodes_file: NodesFile,
    resume: EarlierRun | None,
    termination: Termination,
    *,
    lender: Lender | None = None,
    trial: TrialSettings | Measurement | None = None,
) -> int:
    """Run the job; gives the training's exit code."""
    from hetero_hvd.driver.job import run_job  # noqa: PLC0415 - imports Horovod
    from hetero_hvd.run.tracking.begin_and_end import RunLabels  # noqa: PLC0415

    known = RecordConfig(**given(RECORD_SETTINGS, os.environ))
    name, tags = _labels_of(resume)
    tags |= dict(map(tag, known.tags)) | dict(arguments.tag)
    labels = RunLabels(arguments.name or known.name or name, tags)
    return run_job(
        nodes_file,
        arguments.command,
        resume=resume,
        labels=labels,
        lender=lender,
        termination=termination,
        style=TerminalStyle.of(
            os.environ,
            is_terminal=sys.stdout.isatty(),
            colour=arguments.color,
            verbosity=arguments.verbosity,
        ),
        trial=trial,
    )


def check_started_once(environment: Mapping[str, str]) -> None:
    """Refuse to be started by another launcher: that would be several drivers.

    Args:
        environment: Of this process.

    Raises:
        UserError: One has started several processes, of which this is one.
    """
    found = started_by(environment)
    if found is not None and found.is_certain:
        raise UserError(found.why_not_run())


def _lender(arguments: argparse.Namespace) -> slurm_job.SlurmJob | slurm_agents.SlurmAgents | None:
    """Who lends the machines; None: they are the user's own."""
    if arguments.slurm_agents is not None:
        return slurm_agents.SlurmAgents(arguments)
    if arguments.slurm:
        return slurm_job.SlurmJob(arguments)
    slurm_job.check_flags(arguments)
    return None


def is_auto(place: Path | str | None) -> bool:
    """Whether an earlier start of the same run is meant, if there is one."""
    return place == Path(slurm_job.AUTO)


def _labels_of(resume: EarlierRun | None) -> tuple[str, dict[str, str]]:
    """Name and tags of the run that is gone on with; none, where it was not recorded."""
    from hetero_hvd.run.records.reader import newest_start  # noqa: PLC0415 - seldom

    folder = resume.folder if resume is not None else None
    start = newest_start(folder) if folder is not None else None
    return (start[1].name, dict(start[1].tags)) if start else ("", {})


def _resumed(place: Path | str | None, output: str | None = None) -> EarlierRun | None:
    """The run to go on from; None: there is none.

    Raises:
        UserError: There is none where one was named, or nobody knows which starts belong together.
    """
    if place is None:
        return None
    if not is_auto(place) or Path(slurm_job.AUTO).exists():
        return earlier_run(place)
    if output is None:
        raise UserError(
            f"--resume {slurm_job.AUTO}: starts belong together by their folder, or by their Slurm "
            "job; add --output DIR, the same at each start, or --slurm, or name the run"
        )
    return run_of_folder(Path(output))


def check_script(command: tuple[str, ...], nodes: Sequence[NodeConfig]) -> None:
    """Find a mistyped script before any worker is started.

    Args:
        command: With its arguments.
        nodes: Where it is to run.

    Raises:
        JobError: A node on this machine would not find it. Other machines may have other files.
    """
    if command[0].startswith("-"):
        raise UserError(f"after -- comes a script or a program: python {' '.join(command)}, say")
    is_python = Path(command[0]).name.startswith("python")
    script = command[1] if is_python and len(command) > 1 else command[0]
    is_module = is_python and not script.endswith(".py")  # or an option; Python finds it by itself
    for node in nodes:
        folder = Path()
        if node.is_local and node.directory:
            folder = own_path(node.directory, f"{node.name}: directory")
        is_here = node.is_local and not is_module
        if is_here and not _can_run(node, script, folder):
            what = "file" if script.endswith(".py") else "program"
            question = did_you_mean(script, (path.name for path in folder.glob("*.py")))
            raise JobError(
                f"{script}: no such {what} in {folder.absolute()}, where {node.name} runs it"
                f"{question}"
            )


def check_traced(cluster: ClusterConfig) -> None:
    """Find a mistyped worker of whom nothing would be traced.

    Raises:
        JobError: The job has none of that name, and no other nodes may come.
    """
    wanted = cluster.job.trace_workers
    if wanted is None or cluster.may_grow:
        return
    known = {node.name: node.declared_slots for node in cluster.nodes}
    for worker in wanted.split(","):
        name, _, slot = worker.rpartition(":")
        number = known.get(name, 0)
        if number is not None and int(slot) >= number:
            there = (f"{name}:{_slots(number)}" for name, number in known.items())
            raise JobError(f"job.trace_workers: found {worker}, must be of {', '.join(there)}")


def _slots(number: int | None) -> str:
    """The slots of a node; None: its GPUs decide."""
    return "SLOT" if number is None else "0" if number == 1 else f"0 to {number - 1}"


def _can_run(node: NodeConfig, script: str, folder: Path) -> bool:
    if (folder / script).is_file():
        return True
    path = node.env.get("PATH", os.environ.get("PATH", os.defpath))
    places = os.pathsep.join([str(Path(node.python or sys.executable).parent), path])
    return not script.endswith(".py") and which(script, path=places) is not None
