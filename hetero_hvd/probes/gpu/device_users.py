"""Who uses a GPU: owner, program and job of a process, from what the kernel shows of it."""

from __future__ import annotations

import math
import pwd
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.messages import DeviceUser
from hetero_hvd.messages.launch import LAUNCH_VARIABLE, launch_from_text

MAX_WORD_CHARACTERS = 64
_MAX_ENVIRONMENT_BYTES = 2**20
_INTERPRETER = re.compile(r"python[\d.]*|bash|sh|perl|ruby|node|julia")
_CONTROL_GROUPS = (
    ("slurm", re.compile(r"/slurm[^/]*/.*?job_(\w+)")),
    ("pod", re.compile(r"kubepods.*?pod([0-9a-f]{8}[-_0-9a-f]{28})")),
    ("container", re.compile(r"(?:docker|libpod|crio|cri-containerd)[-/]([0-9a-f]{12})[0-9a-f]*")),
    ("container", re.compile(r"/lxc(?:\.payload)?[./]([\w.-]+)")),
)
"""What a control group's path says of whom it belongs to, the closest to a job first."""

_VARIABLES = {"SLURM_JOB_ID": "slurm", "PBS_JOBID": "pbs", "LSB_JOBID": "lsf", "JOB_ID": "sge"}


class DeviceUsers:
    """Knows the processes that it has been asked of before: their kind does not change.

    Args:
        proc: Where the kernel shows processes.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, tuple[str, DeviceUser]] = {}

    def who(self, processes: dict[int, int | None]) -> tuple[DeviceUser, ...]:
        """Who these are.

        Args:
            processes: Number to the bytes that it uses on the GPU; None: not told. In a container
                the driver may count otherwise than we: of who cannot be found, the number is told.
        """
        found = []
        for pid, memory_bytes in sorted(processes.items()):
            used = math.nan if memory_bytes is None else float(memory_bytes)
            found.append(msgspec.structs.replace(self._user(pid), memory_bytes=used))
        return tuple(found)

    def forget_others(self, pids: set[int]) -> None:
        """These are all who use a GPU now."""
        for pid in self._known.keys() - pids:
            del self._known[pid]

    def _user(self, pid: int) -> DeviceUser:
        folder = self._proc / str(pid)
        try:
            started = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        except (OSError, IndexError):
            return DeviceUser(pid=pid)
        known = self._known.get(pid)
        if known is None or known[0] != started:
            known = self._known[pid] = (started, _look_up(pid, folder))
        return known[1]


def _look_up(pid: int, folder: Path) -> DeviceUser:
    user = command = job = ""
    with suppress(OSError):
        number = folder.stat().st_uid
        user = str(number)
        with suppress(KeyError):
            user = pwd.getpwuid(number).pw_name
    with suppress(OSError):
        command = _command((folder / "cmdline").read_bytes())
        command = command or (folder / "comm").read_text(errors="replace")
    with suppress(OSError):
        job = _job_of_control_group((folder / "cgroup").read_text(errors="replace"))
    with suppress(OSError), (folder / "environ").open("rb") as file:  # others' are not shown to us
        job = _job_of_environment(file.read(_MAX_ENVIRONMENT_BYTES)) or job
    return DeviceUser(pid=pid, user=_plain(user), command=_plain(command), job=_plain(job))


def _command(line: bytes) -> str:
    """The program's name, or that of the script or module that an interpreter runs.

    Arguments stay where they are: secrets may be among them.
    """
    words = [word.decode(errors="replace") for word in line.split(b"\0") if word]
    name = Path(words[0]).name if words else ""
    if _INTERPRETER.fullmatch(name):
        for number, word in enumerate(words[1:], 1):
            if word == "-m":
                return "".join(words[number + 1 : number + 2]) or name
            if word in ("-c", "-"):
                return name
            if not word.startswith("-"):
                return Path(word).name
    return name


def _job_of_environment(environment: bytes) -> str:
    pairs = (entry.decode(errors="replace").partition("=") for entry in environment.split(b"\0"))
    variables = {name: value for name, _, value in pairs}
    with suppress(JobError):
        identity = launch_from_text(variables.get(LAUNCH_VARIABLE, "")).identity
        return f"{identity.run} {identity.worker}".strip()
    return next(
        (f"{kind} {variables[name]}" for name, kind in _VARIABLES.items() if variables.get(name)),
        "",
    )


def _job_of_control_group(text: str) -> str:
    for kind, pattern in _CONTROL_GROUPS:
        if found := pattern.search(text):
            return f"{kind} {found[1]}"
    return ""


def _plain(text: str) -> str:
    """One short word or two, whatever somebody has called his process."""
    shown = "".join(c if c.isprintable() else "?" for c in text.strip())
    return shown[:MAX_WORD_CHARACTERS]
