"""`launcher: srun`: the supervisor is a step of the Slurm job in which the driver runs."""

from __future__ import annotations

import os
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
    "--mpi=none",
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

OF_ALL_STEPS = frozenset(
    {
        "PMI_FANOUT",
        "PMI_FANOUT_OFF_HOST",
        "PMI_TIME",
        "SLURM_ACCTG_FREQ",
        "SLURM_CONF",
        "SLURM_CPU_FREQ_REQ",
        "SLURM_DEBUG_FLAGS",
        "SLURM_EPILOG",
        "SLURM_GPU_FREQ",
        "SLURM_JOB_ID",
        "SLURM_JOB_NAME",  # of no effect on a step
        "SLURM_JOB_NUM_NODES",  # an option of ours says another number
        "SLURM_PMI_KVS_NO_DUP_KEYS",
        "SLURM_POWER",
        "SLURM_PROFILE",
        "SLURM_PROLOG",
        "SLURM_TASK_EPILOG",
        "SLURM_TASK_PROLOG",
        "SLURM_UMASK",
        "SRUN_CONTAINER",
    }
)
"""Variables that srun takes for options and that a step of ours must have, or may have."""

_ABOUT_ONE_STEP = """
ACCOUNT ARBITRARY_NODELIST BCAST BCAST_EXCLUDE BURST_BUFFER CLUSTERS CLUSTER_CONSTRAINT COMPRESS
CONSTRAINT CONTAINER_ID CORE_SPEC CPUS_PER_GPU CPUS_PER_TASK CPU_BIND CPU_BIND_LIST
CPU_BIND_TYPE CPU_BIND_VERBOSE DEBUG DELAY_BOOT DEPENDENCY DISABLE_STATUS DISTRIBUTION
DIST_PLANESIZE EXACT EXCLUSIVE EXIT_ERROR EXIT_IMMEDIATE EXPORT_ENV GPUS GPUS_PER_NODE
GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GRES GRES_FLAGS HINT HOSTFILE IMMEDIATE KILL_BAD_EXIT
LABELIO MEM_BIND MEM_BIND_LIST MEM_BIND_PREFER MEM_BIND_SORT MEM_BIND_TYPE MEM_BIND_VERBOSE
MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE MPI_TYPE NCORES_PER_SOCKET NETWORK NNODES NO_KILL NPROCS
NSOCKETS_PER_NODE NTASKS NTASKS_PER_CORE NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET
NTASKS_PER_TRES OOMKILLSTEP OOM_KILL_STEP OPEN_MODE OVERCOMMIT OVERLAP PARTITION QOS RELATIVE
REMOTE_CWD REQ_SWITCH RESERVATION RESV_PORTS SEND_LIBS SIGNAL SPREAD_JOB SRUN_MULTI
SRUN_REDUCE_TASK_EXIT_MSG STDERRMODE STDINMODE STDOUTMODE STEP_GRES STEP_KILLED_MSG_NODE_ID
TEST_EXEC THREADS THREADS_PER_CORE THREAD_SPEC TIMELIMIT TREE_WIDTH TRES_BIND TRES_PER_TASK
UNBUFFEREDIO USE_MIN_NODES WAIT WAIT4SWITCH WCKEY WORKING_DIR
"""

ABOUT_ONE_STEP = frozenset({"SLURMD_DEBUG", *(f"SLURM_{n}" for n in _ABOUT_ONE_STEP.split())})
"""Variables of the allocation, of the step in which the driver runs, or of the user, that srun
takes for options: each would make something else of a step of ours, or end it."""


class SrunLauncher:
    """See `Launcher`; srun's own exit codes say nothing: 0 also if the node has failed."""

    unreachable_codes = frozenset({EXIT_NO_CONNECTION})
    says_goodbye = True

    def command(self, node: NodeConfig, arguments: Sequence[str], job: str) -> list[str]:  # noqa: ARG002
        """See `Launcher`."""
        words = supervisor_words(node, ("--step", *arguments))
        return srun_vector(node, words)


def srun_vector(node: NodeConfig, words: Sequence[str]) -> list[str]:
    """The argument vector of a process that runs a program as a step on a node."""
    unset = (part for name in sorted(os.environ) if _is_left_out(name) for part in ("-u", name))
    given = {"nodelist": node.name} | node.srun_options
    options = (f"--{name}={value}" if value else f"--{name}" for name, value in given.items())
    return ["env", *unset, *OF_ITS_OWN, "srun", *OPTIONS, *options, "--", *words]


def _is_left_out(name: str) -> bool:
    """Whether a step does not get a variable of the driver; all of SRUN_ are srun's own."""
    is_about_it = name in ABOUT_ONE_STEP or name.startswith("SRUN_")
    return name in NOT_OF_THIS_NODE or (is_about_it and name not in OF_ALL_STEPS)


LAUNCHER: Launcher = SrunLauncher()
