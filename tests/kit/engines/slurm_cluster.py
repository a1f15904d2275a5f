"""A Slurm of four nodes on this machine, on ports of its own: `fast1`, `fast2`, `slow1`, `slow2`.

It needs root and Debian's slurm-wlm and munge, but no systemd, cgroups or database.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from tests.kit.processes import end

NODES = ("fast1", "fast2", "slow1", "slow2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol")
SLURMD = ("slurmd", "-D", "-N")
START_SECONDS, END_SECONDS = 60.0, 10.0
DAEMON_OF = "KIT_DAEMON_OF"
"""Variable of a node's slurmd, and of what that starts beside the tasks."""

ADMIN_PATH = "/usr/sbin:/sbin"

CONFIGURATION = """
ClusterName=kit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskProlog={folder}/task-prolog
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PartitionName=normal Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""
"""A requeued job may begin when its credential has expired, after 5 s."""

NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 "
    "Feature={feature} {gres}"
)


def why_not() -> str:
    """Why there can be no such cluster on this machine; empty: there can."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), ADMIN_PATH])
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"no {', '.join(missing)} here: Debian's slurm-wlm and munge"
    return "" if os.getuid() == 0 else "slurmd needs root"


class SlurmCluster:
    """A cluster that runs.

    Attributes:
        folder: Of its files.
        environment: In which Slurm's programs find it, and nothing of an allocation.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        path = os.pathsep.join([inherited.get("PATH", os.defpath), ADMIN_PATH])
        self.environment = {**inherited, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *words: str) -> None:
        """Start a daemon, known by its last word; `close` ends it."""
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons[words[-1]] = subprocess.Popen(
                words,
                env=self.environment | {DAEMON_OF: words[-1]},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """End all daemons, and what is left of their jobs."""
        while self._daemons:
            end(self._daemons.popitem()[1], END_SECONDS)
        for pid in _of_cluster(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ask(self, *words: str, seconds: float = 30.0) -> str:
        """What a program of Slurm's prints; an error if it fails."""
        done = subprocess.run(
            words,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def allocation(self, *options: str) -> dict[str, str]:
        """The environment inside a new allocation; `end` ends it."""
        words = ["salloc", "--no-shell", "--no-kill", *options]
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )
        found = re.search(r"Granted job allocation (\d+)", done.stderr)
        if found is None:
            raise RuntimeError(done.stderr)
        nodes = self.job(found[1])["NodeList"]
        own = {"SLURM_JOB_ID": found[1], "SLURM_JOBID": found[1], "SLURM_JOB_NODELIST": nodes}
        return self.environment | own

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job."""
        text = self.ask("scontrol", "show", "job", "--oneliner", number)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def end(self, number: str) -> None:
        """Cancel a job, and wait until it is gone."""
        with suppress(RuntimeError):
            self.ask("scancel", number)
        self.wait_for(lambda: number not in self.ask("squeue", "-h", "-o", "%A"))

    def wait_for(self, condition: object, seconds: float = 30.0) -> None:
        """Until a condition is met."""
        assert callable(condition)  # noqa: S101 - for the reader of types
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.05)

    def hurry(self, label: str) -> None:
        """Let a requeued job begin, though the credential of its first start has not expired yet.

        Nodes refuse a credential that is of the second in which the job has ended.
        """
        self.wait_for(lambda: self.job(label)["JobState"] == "PENDING")
        self.ask("scontrol", "update", f"JobId={label}", "StartTime=now+1")

    def set_down(self, node: str) -> None:
        """Let a node fail, as Slurm sees it."""
        self.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def set_up(self) -> None:
        """Let all nodes that were set down, or have crashed, take jobs again."""
        for node in NODES:
            if self._daemons[node].poll() is not None:
                self.start(*SLURMD, node)
        self.wait_for(self._is_up)

    def _is_up(self) -> bool:
        states = dict(line.split() for line in self.ask("sinfo", "-hNo", "%N %T").splitlines())
        for node, state in states.items():
            if state.startswith("down"):
                self.ask("scontrol", "update", f"nodename={node}", "state=idle")
        return not any(state.startswith("down") or state.endswith("*") for state in states.values())

    def crash(self, node: str) -> None:
        """Kill all processes of a node, and tell Slurm."""
        for pid in _of_cluster(self.folder, node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.set_down(node)


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Run a cluster until the block ends; none of its processes is left, nor any of its jobs.

    Args:
        folder: Of its files; its path must be short, as there are sockets in it.
    """
    _configure(folder)
    with closing(SlurmCluster(folder)) as cluster:
        cluster.start("munged", "--foreground", "--force", "--num-threads=1", *_munge_files(folder))
        cluster.wait_for((folder / "munge.socket").exists)
        cluster.start("slurmctld", "-D")
        for name in NODES:
            cluster.start(*SLURMD, name)
        deadline = time.monotonic() + START_SECONDS
        while _states(cluster) != {"idle"}:
            if time.monotonic() > deadline:
                raise RuntimeError((folder / "slurmctld.log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)
        yield cluster
        for number in cluster.ask("squeue", "-h", "-o", "%A").split():
            cluster.end(number)


def _states(cluster: SlurmCluster) -> set[str]:
    try:
        return set(cluster.ask("sinfo", "-h", "-o", "%t").split())
    except RuntimeError:  # slurmctld is not there yet
        return set()


def _munge_files(folder: Path) -> Iterator[str]:
    names = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log"}
    names["seed-file"] = "seed"
    yield from (f"--{option}={folder}/munge.{name}" for option, name in names.items())


def _configure(folder: Path) -> None:
    (folder / "state").mkdir(parents=True)
    (folder / "munge.key").write_bytes(secrets.token_bytes(64))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    controller_port, *ports = _free_ports(1 + len(NODES))
    text = CONFIGURATION.format(folder=folder, host=host, controller_port=controller_port)
    for name, port in zip(NODES, ports, strict=True):
        is_fast = name.startswith("fast")
        feature, gres = ("v100", "Gres=gpu:2") if is_fast else ("t4", "")
        text += NODE.format(name=name, host=host, port=port, feature=feature, gres=gres) + "\n"
    (folder / "slurm.conf").write_text(text)
    leases = f"{folder}/leases-$SLURMD_NODENAME"  # as the nodes are one machine, with one GPU 0
    prolog = f"mkdir -p {leases}\necho export HETERO_HVD_LEASES_FOLDER={leases}"
    (folder / "task-prolog").write_text(f"#!/bin/sh\n{prolog}\n")
    (folder / "task-prolog").chmod(0o755)
    for number in range(2):  # what stands for GPUs has to be a device
        os.mknod(folder / f"gpu{number}", 0o20600, os.makedev(1, 3))
    gpus = f"NodeName=fast[1-2] Name=gpu Count=2 File={folder}/gpu[0-1]\n"
    (folder / "gres.conf").write_text(gpus)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _environments() -> Iterator[tuple[int, Mapping[str, str]]]:
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pairs = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            yield int(path.name), dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _of_cluster(folder: Path, node: str | None = None) -> list[int]:
    """The processes of a cluster, or of a node: its slurmd, what that has started, its tasks."""
    return [
        pid
        for pid, environment in _environments()
        if environment.get("SLURM_CONF") == str(folder / "slurm.conf")
        and node in (None, environment.get(DAEMON_OF), environment.get("SLURMD_NODENAME"))
    ]
