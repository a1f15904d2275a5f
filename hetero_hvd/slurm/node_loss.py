"""Whether the job goes on when a node fails: by `--no-kill`, of which Slurm tells nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.programs import ask

VARIABLES = ("SBATCH_NO_KILL", "SALLOC_NO_KILL", "SLURM_NO_KILL")
"""sbatch and salloc take the option from the first two, and leave them in the job's environment."""

_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")


def check_no_kill(granted: Allocation, environment: Mapping[str, str]) -> None:
    """See that the job survives the loss of a node.

    Slurm shows nowhere how it was submitted: it is looked for in the environment, in the batch
    script, and in the command line of the salloc that this is a child of.

    Args:
        granted: The job; one of a single node does not survive its loss anyway.
        environment: Of this process.

    Raises:
        UserError: It does not, or that cannot be found out.
    """
    if len(granted.nodes) == 1:
        return
    is_given = any(
        name in environment and environment[name] not in ("0", "no", "off") for name in VARIABLES
    )
    words = [word for line in (*_directives(granted.job_id), *_callers()) for word in line.split()]
    if not (is_given or _says_no_kill(words)):
        raise UserError(
            f"--slurm: Slurm ends job {granted.label} as a whole when one of its "
            f"{len(granted.nodes)} nodes fails, unless it was submitted with --no-kill, which is "
            "not in its script; add the line '#SBATCH --no-kill' (or call salloc --no-kill, or set "
            "SLURM_NO_KILL=1 where it was given to sbatch)"
        )


def note_of_first_part(granted: Allocation) -> str:
    """What is to be known of a job whose first part does not survive; empty: it does."""
    firsts = [node for node in granted.nodes if node.group == 0]
    if len(firsts) != 1 or len(granted.nodes) == 1:
        return ""
    return (
        "note: the first part of this heterogeneous job has a single node: whichever node fails, "
        "Slurm requeues the job as a whole; give the part that comes first two nodes or more"
    )


def _says_no_kill(words: Iterable[str]) -> bool:
    last = [word for word in words if re.fullmatch(r"-k|--no-kill(=\S*)?", word)][-1:]
    return bool(last) and not last[0].endswith("=off")


def _directives(job_id: str) -> list[str]:
    """The options in the batch script; none if it is no batch job."""
    with suppress(JobError):
        lines = ask("scontrol", "write", "batch_script", job_id, "-").splitlines()
        return [match[1] for line in lines if (match := _DIRECTIVE.match(line))]
    return []


def _callers() -> list[str]:
    """Command lines of those salloc whose child this process is."""
    found, pid = [], "self"
    with suppress(OSError, IndexError):
        while pid not in ("0", "1"):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name == "salloc":
                found.append(" ".join(words))
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            pid = stat.rpartition(")")[2].split()[1]
    return found
