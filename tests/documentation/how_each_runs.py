"""How each command of the pages is tried: the one table in which a new one has to find its row.

The first row whose pattern matches the whole command counts.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from tests.documentation.page_commands import Command


class Way(Enum):
    """How a command is tried, beside being read by its parser."""

    HERE = auto()
    """By the command line's `main`, in this process."""
    SLOWLY = auto()
    """The same, but it takes seconds of processor time or starts processes: matrix."""
    TRAINS = auto()
    """As a process of its own in a folder with two nodes and a script: matrix."""
    ELSEWHERE = auto()
    """By another test, whose path follows."""
    READ = auto()
    """Only by its parser, for the reason that follows."""
    NOT = auto()
    """Not at all, for the reason that follows."""


class Row(NamedTuple):
    """One kind of command.

    Attributes:
        pattern: That its words, one blank between them, match as a whole.
        way: How it is tried.
        why: The test, or the reason.
    """

    pattern: str
    way: Way
    why: str = ""


CLUSTER = "cluster/test_three_machines.py"
OURS = (
    Row(r"hetero-hvd (install|doctor).* (digits\.py|scikit-learn)", Way.ELSEWHERE, CLUSTER),
    Row(r"hetero-hvd install.*", Way.ELSEWHERE, CLUSTER),
    Row(
        r"hetero-hvd (run|trial) .*s3://.*",
        Way.ELSEWHERE,
        "worker/recovery/checkpoints/test_every_store.py",
    ),
    Row(r"hetero-hvd run .*--(discover|hub|tls-file).*", Way.ELSEWHERE, "cluster/test_agents.py"),
    Row(r"hetero-hvd run .*--slurm.*", Way.ELSEWHERE, "driver/test_slurm.py"),
    Row(r"hetero-hvd run .*--ray.*", Way.ELSEWHERE, "driver/test_ray.py"),
    Row(r"hetero-hvd benchmark collectives( .*)?", Way.ELSEWHERE, "measure/test_comm.py"),
    Row(r"hetero-hvd (run|trial|benchmark)( .*)?", Way.TRAINS),
    Row(r"hetero-hvd agent --cloud aws", Way.ELSEWHERE, "agent/test_interruptions.py"),
    Row(r"hetero-hvd agent .*--announce-to.*", Way.ELSEWHERE, "cluster/test_announce_to.py"),
    Row(r"hetero-hvd agent( .*)?", Way.ELSEWHERE, "cluster/test_agents.py"),
    Row(r"hetero-hvd hub --queue .*", Way.ELSEWHERE, "hub/queue/test_queue_guide.py"),
    Row(r"hetero-hvd hub( .*)?", Way.ELSEWHERE, "hub/test_flags.py"),
    Row(r"hetero-hvd record recover", Way.ELSEWHERE, "hub/test_damaged_files.py"),
    Row(r"hetero-hvd record .*", Way.ELSEWHERE, "hub/test_names.py"),
    Row(r"hetero-hvd submit --to kubernetes .*", Way.ELSEWHERE, "deploy/test_submit_to.py"),
    Row(r"hetero-hvd submit --to slurm .*", Way.ELSEWHERE, "driver/test_submit_to_slurm.py"),
    Row(r"hetero-hvd (submit|queue) .*", Way.ELSEWHERE, "hub/queue/test_queue_guide.py"),
    Row(r"hetero-hvd nodes --discover", Way.ELSEWHERE, "cluster/test_agents.py"),
    Row(r"hetero-hvd drain .*", Way.ELSEWHERE, "faults/test_leaving.py"),
    Row(r"hetero-hvd trace .*", Way.ELSEWHERE, "driver/test_traces.py"),
    Row(r"hetero-hvd top URL", Way.ELSEWHERE, "test_top.py"),
    Row(r"hetero-hvd export .*URL", Way.ELSEWHERE, "run/sinks/test_every_sink.py"),
    Row(r"hetero-hvd advise .*--annotate .*", Way.ELSEWHERE, "run/sinks/test_kubernetes_object.py"),
    Row(
        r"hetero-hvd advise --prometheus .*", Way.ELSEWHERE, "run/recordings/test_prometheus_api.py"
    ),
    Row(r"hetero-hvd doctor( .*)?", Way.SLOWLY),
    Row(r"hetero-hvd (report .*--plot .*|simulate.*|hardware -f .*)", Way.SLOWLY),
    Row(
        r"hetero-hvd (advise|certificates|compare|config|cost|deploy|export|hardware|key|nodes"
        r"|report|runs|top)( .*)?",
        Way.HERE,
    ),
    Row(r"hetero-hvd --(completion|help|version).*", Way.HERE),
    Row(r"hetero-hvd COMMAND --help", Way.ELSEWHERE, "test_commands.py"),
)
TRAINED_ALONE = "process/test_examples.py"
SLURM = "needs a Slurm; `slurm` of driver/conftest.py has one for the tests of driver/test_slurm.py"
KUBERNETES = "needs a cluster of Kubernetes; deploy/test_kubernetes.py reads what it is given"
OTHERS = (
    Row(r"horovodrun --host-discovery-script", Way.NOT, "an option, named in a sentence"),
    Row(r"horovodrun .*", Way.ELSEWHERE, TRAINED_ALONE),
    Row(
        r"torchrun .*|python -m torch\.distributed\.run", Way.ELSEWHERE, "process/test_migration.py"
    ),
    Row(r"python (digits|train)\.py", Way.ELSEWHERE, TRAINED_ALONE),
    Row(r"python -m hetero_hvd\.supervisor", Way.ELSEWHERE, "test_supervisor.py"),
    Row(r"python -m hetero_hvd\.probes\.machine\.node_metrics .*", Way.READ),
    Row(r"python -m benchmarks\.faults.*", Way.READ, "kills workers for minutes"),
    Row(r"python -m timeit .*", Way.READ, "a figure of a page is measured by it"),
    Row(r"python -c .*", Way.SLOWLY),
    Row(r"scripts/(bench|chaos|gpu-check)( .*)?", Way.READ, "takes minutes or a GPU"),
    Row(r"(scripts|\.ci)/\S+.*", Way.READ, "sets up, builds or tests the whole"),
    Row(r"pytest .*", Way.READ, "would be a test in itself"),
    Row(r"pip install.*", Way.READ, "needs an index, or what is not released yet"),
    Row(r"(ruff|pre-commit|mypy|lint-imports).*", Way.ELSEWHERE, "test_workflows.py"),
    Row(r"streamlit run .*", Way.ELSEWHERE, "documentation/test_dashboard.py"),
    Row(r"docker build .*", Way.ELSEWHERE, "deploy/test_images.py"),
    Row(r"docker (push|compose) .*", Way.NOT, "needs Docker, and a registry or the network"),
    Row(r"(kubectl|helm) .*", Way.NOT, KUBERNETES),
    Row(
        r"(sbatch|srun|salloc|scancel|scontrol|squeue) .*|sh job/(submit|driver)\.sh",
        Way.NOT,
        SLURM,
    ),
    Row(r"ray (start|job) .*", Way.NOT, "needs a cluster of Ray; tests/kit/engines has one"),
    Row(r"curl .*", Way.ELSEWHERE, "hub/test_api.py"),
    Row(r"(ssh|scp) .*root@10\.77\.1\.1[12].*", Way.ELSEWHERE, CLUSTER),
    Row(r"(ssh-copy-id|ssh-keygen|ssh) .*", Way.NOT, "changes or needs another machine's login"),
    Row(r"(apt-get install|git clone) .*", Way.NOT, "changes this machine, from the network"),
    Row(r"(wg|ip|sysctl) .*", Way.ELSEWHERE, "cluster/test_wireguard.py"),
    Row(
        r"(\.|cd|export|head|kill|od|openssl|tail|tr|umask) .*",
        Way.NOT,
        "is the shell's or the system's",
    ),
)
ROWS = (*OURS, *OTHERS)


def row_of(command: Command) -> Row | None:
    """The row of a command; None: there is none."""
    return next((row for row in ROWS if re.fullmatch(row.pattern, command.text, re.DOTALL)), None)


WORDS = {
    "RUN": "first",
    "A": "first",
    "B": "second",
    "C": "second",
    "RECORDING": "hub/recordings/night",
    "DIR": "written",
    "FILE": "trace.csv",
    "URL": "http://127.0.0.1:9500",
    "http://HOST:PORT": "http://127.0.0.1:9500",
    "http://HOST:9392": "http://127.0.0.1:9392",
    "ID": "leave:beta",
    "PART": "three",
    "CASE": "pause",
    "N": "4",
    "K": "1",
    "NAME": "alpha",
    "PORT": "9100",
    "/data": ".",
}
"""What the pages leave open, or is not on each machine, and what stands for it here."""
