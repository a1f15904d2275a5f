"""Whether the job goes on when a node fails: by `--no-kill`, of which Slurm tells nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hetero_hvd.errors import UserError
from hetero_hvd.probes.kernel.ancestors import ancestors
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.batch_script import options_of, own_options
from hetero_hvd.slurm.programs import ask
from hetero_hvd.slurm.requeue import is_batch_job

OF_SBATCH, OF_SALLOC, OF_THE_USER = "SBATCH_NO_KILL", "SALLOC_NO_KILL", "SLURM_NO_KILL"
"""sbatch and salloc take the option from the first two, each from its own, and leave them in the
job's environment: what the other one has left there is about a job around this one."""

_NO_KILL = re.compile(r"-[hHOQsvVW]*k.*|--no-k(i(l(l(=\S*)?)?)?)?")
"""`-k` may stand behind other letters that take no value; of a long option the begin is enough."""


def check_no_kill(granted: Allocation, environment: Mapping[str, str]) -> str:
    """See that the job survives the loss of a node.

    Slurm shows nowhere how it was submitted: it is looked for in the environment, in the batch
    script, and in the command line of the salloc that this is a child of. Of a heterogeneous job
    the first part's option is that of all.

    Args:
        granted: The job; one of a single node does not survive its loss anyway.
        environment: Of this process.

    Returns:
        A note if that cannot be found out: there is no script, and salloc runs elsewhere.

    Raises:
        UserError: It does not.
    """
    if len(granted.nodes) == 1:
        return ""
    has_script = is_batch_job(granted)
    names = (OF_SBATCH if has_script else OF_SALLOC, OF_THE_USER)
    if any(environment.get(name, "no") not in ("0", "no", "off") for name in names):
        return ""
    risk = (
        f"Slurm ends job {granted.label} as a whole when one of its {len(granted.nodes)} nodes "
        "fails"
    )
    if has_script:
        words = list(options_of(ask("scontrol", "write", "batch_script", granted.label, "-")))
    else:
        above = (process.words for process in ancestors())
        callers = [words for words in above if words[0].rpartition("/")[2] == "salloc"]
        if not callers:
            return f"note: without --no-kill, which cannot be seen from here, {risk}"
        words = [word for line in callers for word in own_options(line[1:])]
    if _says_no_kill(words):
        return ""
    raise UserError(
        f"--slurm: {risk}, unless it was submitted with --no-kill, which is not in its script; add "
        "the line '#SBATCH --no-kill' (or call salloc --no-kill, or set SLURM_NO_KILL=1 where it "
        "was given to sbatch)"
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
    last = [word for word in words if _NO_KILL.fullmatch(word)][-1:]
    return bool(last) and not last[0].endswith("=off")
