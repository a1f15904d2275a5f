"""`launcher: srun`: the supervisor is a step of the Slurm job in which the driver runs."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launch_order import NO_GPU, ONE_GPU
from hetero_hvd.driver.workers.launchers.registry import Launcher, supervisor_words
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION

OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",  # all workers of a node, and what counts its GPUs, have all that is granted there
    "--mem=0",
    "--cpu-bind=none",
    "--kill-on-bad-exit=0",
    "--unbuffered",
    "--quiet",
)

OF_ITS_OWN = ("setsid", "--wait")
"""A srun that is killed leaves its step as it is; one whose input ends passes that on. So whoever
kills the process that was started here does not kill srun."""

NOT_OF_THIS_NODE = tuple(
    sorted({*ONE_GPU, *NO_GPU, "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
)
"""Variables of the driver's own node that a step on a node without GPUs would inherit."""

ABOUT_ALL_STEPS = (
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_EXCLUSIVE",
    "SLURM_EXPORT_ENV",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_IMMEDIATE",
    "SLURM_LABELIO",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_NO_KILL",  # of a step: it would wait for a node that has failed
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_TRES_PER_TASK",
)
"""Variables of the allocation or the user that srun takes for options of its own."""


class SrunLauncher:
    """See `Launcher`; srun's own exit codes say nothing: 0 also if the node has failed."""

    unreachable_codes = frozenset({EXIT_NO_CONNECTION})
    busy_codes = frozenset[int]()
    says_goodbye = True

    def command(self, node: NodeConfig, arguments: Sequence[str], job: str) -> list[str]:  # noqa: ARG002
        """See `Launcher`."""
        words = supervisor_words(node, ("--goodbye", *arguments))
        return srun_vector(node, words)


def srun_vector(node: NodeConfig, words: Sequence[str]) -> list[str]:
    """The argument vector of a process that runs a program as a step on a node."""
    unset = (part for name in (*NOT_OF_THIS_NODE, *ABOUT_ALL_STEPS) for part in ("-u", name))
    given = {"nodelist": node.name} | node.srun_options
    options = (f"--{name}={value}" if value else f"--{name}" for name, value in given.items())
    return ["env", *unset, *OF_ITS_OWN, "srun", *OPTIONS, *options, "--", *words]


LAUNCHER: Launcher = SrunLauncher()
