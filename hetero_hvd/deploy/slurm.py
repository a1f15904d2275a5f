"""Batch scripts of a driver and its agents, each agent a Slurm job of one node."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from hetero_hvd.config.yaml_document import yaml_text
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.folder import FolderContents, with_mark
from hetero_hvd.errors import UserError
from hetero_hvd.security.cluster_key import read_key
from hetero_hvd.slurm.agent_jobs import AFTER, BEFORE
from hetero_hvd.slurm.driver_address import FILE as ADDRESS_FILE

KEY = "keys/cluster.key"
LOGS = "logs"
RUN = "run"
"""In the folder: the driver's records."""

QUEUE_SECONDS = 7 * 24 * 3600
"""So long a job waits for agents that Slurm has taken away: they may stand in a long queue."""

NUM_DIGITS = 8
"""Of the folder, in the name of its driver's job: of one name one job runs at a time."""

MAX_AGENTS = 1024
MAX_POOL_NAME = 20

TAKEN = (
    *("--array", "--chdir", "--clusters", "--comment", "--error", "--job-name", "--no-requeue"),
    *(
        "--nodes",
        "--ntasks",
        "--open-mode",
        "--output",
        "--requeue",
        "--signal",
        "--wait",
        "--wrap",
    ),
)
TAKEN_LETTERS = ("-a", "-D", "-e", "-J", "-M", "-N", "-n", "-o", "-W")
"""Options of sbatch that are ours, or with which the driver would not find its agents."""

TAKEN_OF_DRIVER, TAKEN_LETTERS_OF_DRIVER = ("--dependency",), ("-d",)
"""The same of the driver's job alone: it waits for the end of another driver of its folder."""

WITHOUT_VALUE = "HhIkOQsv"
"""Letters of sbatch behind which others may stand in the same word."""

_WORD = re.compile(r"[A-Za-z0-9_.,:;=+/@%|&*()\[\]!<>~^{}-]+")
_PATH = re.compile(r'[^"\\%\0-\x1f\x7f\ud800-\udfff]+')
_POOL = re.compile(r"(?P<name>[^:]*):(?P<number>[^:%]*)(%(?P<cap>[^:]*))?(:(?P<options>.*))?")


@dataclass(frozen=True, kw_only=True)
class AgentPool:
    """Agents that are submitted as one array.

    Attributes:
        name: Of the pool.
        number: How many agents.
        most: How many of them run at once.
        options: Further options of sbatch: partition, constraint, GPUs, time limit.
    """

    name: str
    number: int
    most: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SlurmDeployment:
    """What a user decides.

    Attributes:
        name: Of the jobs.
        folder: Where all is kept, by the path under which all nodes know it.
        directory: Where the script is started.
        python: The interpreter, by the path under which all nodes know it.
        command: The script and its arguments, as after `hetero-hvd run --`.
        pools: The agents; names are different.
        driver_options: Of sbatch, for the driver's job.
        leave_seconds: So long before its time limit an agent leaves.
        stagger_seconds: Of which a part of the agent's own is added.
        idle_seconds: An agent without a worker ends after so long.
        run_flags: Of `hetero-hvd run`, for the driver.
        after: Numbers of Slurm's jobs that must have succeeded before the driver starts.
    """

    name: str
    folder: Path
    directory: Path
    python: str
    command: tuple[str, ...]
    pools: tuple[AgentPool, ...]
    driver_options: tuple[str, ...]
    leave_seconds: int
    stagger_seconds: int
    idle_seconds: int
    run_flags: tuple[str, ...] = ()
    after: tuple[int, ...] = ()


def files(job: SlurmDeployment) -> dict[str, str | None]:
    """The files by their names; the scripts of pools that there were before go."""
    stale = {path.name: None for path in job.folder.glob(f"{BEFORE}*{AFTER}")}
    agents = {f"{BEFORE}{pool.name}{AFTER}": _agents(job, pool) for pool in job.pools}
    return {
        **stale,
        **agents,
        "driver.sh": _driver(job),
        "nodes.yaml": _nodes_file(job),
        "submit.sh": f"#!/bin/sh\nexec sbatch {shlex.quote(str(job.folder / 'driver.sh'))}\n",
        "README.md": _readme(job),
    }


def slurm_contents(job: SlurmDeployment) -> FolderContents:
    """All that its folder holds."""
    return FolderContents(
        files=files(job),
        folders={LOGS: 0o777, str(Path(KEY).parent): 0o700},  # less what the umask takes away
        keys={KEY: read_key},
    )


def read_pool(text: str) -> AgentPool:
    """A pool from `NAME:NUMBER[%MOST][:OPTIONS]`.

    Raises:
        UserError: It is none.
    """
    flag = "--pool"
    found = _POOL.fullmatch(text)
    if found is None:
        raise UserError(
            f"{flag}: found {text!r}, must be NAME:NUMBER[%MOST][:OPTIONS OF SBATCH], such as "
            "'gpu:4:--constraint=a100 --gpus=2'"
        )
    number = checks.count(f"{flag} {found['name']}", found["number"], 1, MAX_AGENTS)
    most = number
    if found["cap"] is not None:
        most = checks.count(f"{flag} {found['name']}: after %", found["cap"], 1, number)
    return AgentPool(
        name=checks.name(flag, found["name"], MAX_POOL_NAME),
        number=number,
        most=most,
        options=sbatch_options(f"{flag} {found['name']}", found["options"] or ""),
    )


def sbatch_options(flag: str, text: str, *, is_driver: bool = False) -> tuple[str, ...]:
    """Options of sbatch, as a shell would part them.

    Args:
        flag: That has them.
        text: All of them.
        is_driver: Whether they are the driver's, which has one more of ours.

    Raises:
        UserError: They are none, one of them is ours, or a batch script cannot hold them.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{flag}: found {text!r}, must be options of sbatch: {error}") from error
    if words and not words[0].startswith("-"):
        raise UserError(f"{flag}: found {words[0]!r}, must begin with an option of sbatch")
    for word in words:
        if _WORD.fullmatch(word) is None:
            raise UserError(
                f"{flag}: found {word!r}, must have no blank, quote, '$' or '#' in it; write such "
                "an option into the batch script"
            )
        if _is_taken(word, is_driver=is_driver):
            raise UserError(
                f"{flag}: found {word!r}, an option of sbatch that hetero-hvd gives itself, or "
                "that would keep driver and agents from each other; leave it out"
            )
    return words


def _is_taken(word: str, *, is_driver: bool) -> bool:
    """Whether it is one of our options; of a long one sbatch takes the begin for all of it."""
    taken = (*TAKEN, *(TAKEN_OF_DRIVER if is_driver else ()))
    taken_letters = (*TAKEN_LETTERS, *(TAKEN_LETTERS_OF_DRIVER if is_driver else ()))
    if word.startswith("--"):
        name = word.partition("=")[0]
        return any(ours.startswith(name) for ours in taken)
    return word[:1] + word[1:].lstrip(WITHOUT_VALUE)[:1] in taken_letters


def shared_path(flag: str, path: Path) -> Path:
    """A path that a line of a batch script, and the comment of a job, can hold.

    Raises:
        UserError: It has a character in it that Slurm takes for something else.
    """
    if _PATH.fullmatch(str(path)) is None:
        raise UserError(
            f"{flag}: found {str(path)!r}, must be UTF-8, with no '\"', '%', '\\' or control "
            "character in it"
        )
    return path


def _head(job: SlurmDeployment, what: str, log: str, options: tuple[str, ...]) -> str:
    return "\n".join(
        [
            "#!/bin/sh",
            f"#SBATCH --job-name={job.name}-{what} --nodes=1 --ntasks=1 --requeue",
            f'#SBATCH --open-mode=append --output="{job.folder / LOGS / log}"',
            *([f"#SBATCH {' '.join(options)}"] if options else ()),
            f"cd {shlex.quote(str(job.directory))} || exit 2",
            "",
        ]
    )


def _agents(job: SlurmDeployment, pool: AgentPool) -> str:
    words = [
        *("--key-file", str(job.folder / KEY), "--driver-file", str(job.folder / ADDRESS_FILE)),
        *("--until-idle", str(job.idle_seconds), "--leave-seconds", str(job.leave_seconds)),
        *("--leave-stagger-seconds", str(job.stagger_seconds)),
    ]
    array = f"--array=1-{pool.number}%{pool.most}"
    head = _head(job, pool.name, f"{pool.name}-%a.txt", (array, *pool.options))
    start = f"exec {shlex.quote(job.python)} -m hetero_hvd agent --slurm --port 0"
    return with_mark(f"{head}{HIDE_GPUS}{start} {shlex.join(words)}\n")


HIDE_GPUS = """\
# A job to which no GPU is granted uses none, also where nothing else keeps it from them.
[ -n "${ROCR_VISIBLE_DEVICES+x}${ZE_AFFINITY_MASK+x}" ] ||
  export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
"""


def _driver(job: SlurmDeployment) -> str:
    words = [job.python, "-m", "hetero_hvd", "run", "--slurm-agents", str(job.folder)]
    words += [*job.run_flags, "--"]
    folder = hashlib.sha256(os.fsencode(job.folder)).hexdigest()[:NUM_DIGITS]
    earlier = "".join(f",afterok:{number}" for number in job.after)
    options = (f"--dependency=singleton{earlier}", *job.driver_options)
    head = _head(job, f"driver-{folder}", "driver.txt", options)
    return f"{head}exec {shlex.join([*words, *job.command])}\n"


def _nodes_file(job: SlurmDeployment) -> str:
    settings = {
        "discover": True,
        "cluster_key_file": str(job.folder / KEY),
        "elastic_timeout_seconds": QUEUE_SECONDS,
    }
    return yaml_text({"job": settings, "nodes": []})


def _readme(job: SlurmDeployment) -> str:
    return f"""\
# {job.name}: a driver and its agents, each a Slurm job

- Start: `sh submit.sh`, or `sh driver.sh` on a login node. The driver submits the agents.
- See: `logs/`, `squeue --me`, `hetero-hvd top {RUN}`. How many agents run at once:
  `scontrol update JobId=ARRAY ArrayTaskThrottle=N`.
- End: `scancel` of the driver's job ends the agents, too. `sh submit.sh` goes on from the last
  checkpoint.
- Settings: `nodes.yaml`, of the job; the lines `#SBATCH`, of agents and driver.
- `keys/` is for its owner alone: who has the key runs commands on the agents.
"""
