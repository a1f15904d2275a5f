"""Hosts on one machine: a network namespace, an address, an sshd and a CPU quota each.

Making the bridge claims names and addresses, atomically: several clusters live side by side. Its
control group is claimed, too: tests in another network namespace see the groups, but no bridges.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.checkout import CHECKOUT, python_path
from tests.kit.cpu_quota import set_quota

USER, PORT, INTERFACE = "root", 22, "eth0"  # the same on every host
LOGIN_HOME = Path(pwd.getpwnam(USER).pw_dir)
"""Where a login by ssh begins; this process may have another HOME, as in a container of CI."""

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "make", "cmake")
SSHD_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_{name}
AuthorizedKeysFile {folder}/client.pub
StrictModes no
UsePAM no
UseDNS no
MaxStartups 100
PasswordAuthentication no
PidFile none
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True, kw_only=True)
class VirtualHost:
    """One host; everything that an entry of nodes.yaml needs.

    Attributes:
        name: As in nodes.yaml; also what `hostname` says there.
        address: IPv4 address, reachable from this machine and from the other hosts.
        identity_file: Private key to log in with, as `USER` at `PORT`.
        ssh_options: To be given as `-o KEY=VALUE`; they pin the host's key.
        namespace: Its network namespace.
        cgroup: Folder of its CPU quota.
    """

    name: str
    address: str
    identity_file: Path
    ssh_options: Mapping[str, str]
    namespace: str
    cgroup: Path

    def node(self, *, env: Mapping[str, str] | None = None, **more: object) -> dict[str, object]:
        """Its entry for nodes.yaml, with this process's interpreter and this checkout's packages.

        Args:
            env: Further variables of its workers.
            more: Further settings of the node.
        """
        return {
            "name": self.name,
            "address": self.address,
            "launcher": "ssh",
            "user": USER,
            "port": PORT,
            "identity_file": str(self.identity_file),
            "ssh_options": dict(self.ssh_options),
            "interface": INTERFACE,
            "python": sys.executable,
            "env": {"PYTHONPATH": python_path(), **(env or {})},
            **more,
        }

    def ssh(self, command: str) -> list[str]:
        """Argument vector that runs a shell command there over ssh."""
        options = [f"-o{key}={value}" for key, value in self.ssh_options.items()]
        identity = ["-i", str(self.identity_file), "-p", str(PORT)]
        return ["ssh", "-T", *identity, *options, f"{USER}@{self.address}", command]

    def run(self, argv: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
        """Run a command there without ssh, under the quota; output is captured text."""
        command = [*self.enter(), *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, **more)

    def enter(self) -> list[str]:
        """Argument vector that runs the one after it there, under the quota, without ssh.

        Not `ip netns exec`: its fresh /sys would hide the control groups from the host.
        """
        join = 'echo $$ >"$0/cgroup.procs" && exec nsenter "$@"'
        return ["sh", "-c", join, str(self.cgroup), f"--net=/run/netns/{self.namespace}"]

    def processes(self) -> list[int]:
        """Ids of all that run there."""
        return [int(word) for word in _sh("ip", "netns", "pids", self.namespace).split()]

    def sshds(self) -> tuple[int, list[int]]:
        """Ids of the sshd that listens and of those that hold a connection each.

        Ids begin anew after the last one: the lowest need not be the oldest.
        """
        listens: list[int] = []
        holds: list[int] = []
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if name.startswith("sshd"):  # newer ones hold a connection as sshd-session
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    (listens if name == "sshd" and b"-D" in words else holds).append(pid)
        (listener,) = listens
        return listener, holds

    def throttled_periods(self) -> int:
        """How often the quota has stopped this host's processes so far."""
        words = (self.cgroup / "cpu.stat").read_text().split()
        return int(words[words.index("nr_throttled") + 1])


@dataclass(frozen=True, kw_only=True)
class VirtualCluster:
    """Hosts on one bridge.

    Attributes:
        hosts: By name.
        gateway: This machine's address on their network: where they reach the driver.
        bridge: This machine's network interface to them.
    """

    hosts: Mapping[str, VirtualHost]
    gateway: str
    bridge: str

    def __getitem__(self, name: str) -> VirtualHost:
        return self.hosts[name]


def missing_for_a_cluster() -> str | None:
    """Why no cluster can be made here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("ip", "nsenter", "unshare", "ssh", "ssh-keygen", "sshd"):
        if _which(program) is None:
            return f"needs {program}"
    try:
        _sh("unshare", "--net", "--uts", "true")
    except subprocess.CalledProcessError as error:
        return f"no namespaces here: {error.stderr.strip()}"
    folder = _cgroup(f"hv-probe-{os.getpid()}")
    try:
        folder.mkdir()
        set_quota(folder, percent=100)
    except OSError as error:
        return f"no CPU quotas here: {error}"
    finally:
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
    return None


@contextlib.contextmanager
def running_cluster(
    hosts: Mapping[str, int], *, folder: Path, is_bare: bool = False
) -> Iterator[VirtualCluster]:
    """Make hosts, wait until their sshd answers, and leave nothing of them behind.

    Args:
        hosts: Name to CPU quota in percent of one core, 1 and above.
        folder: An empty folder for keys and logs.
        is_bare: Whether the hosts are machines on which nobody has installed anything: an empty
            home, no compiler, neither this checkout nor this environment.
    """
    with contextlib.ExitStack() as stack:
        subnet, bridge = _claim_bridge(stack)
        _sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "client"))
        made = {
            name: _make_host(
                stack,
                name=name,
                percent=percent,
                address=f"{subnet}.{number}",
                bridge=bridge,
                folder=folder,
                hiding=_hiding(folder / f"home-{name}") if is_bare else "",
            )
            for number, (name, percent) in enumerate(hosts.items(), start=11)
        }
        for host in made.values():
            _await_sshd(host, folder)
        yield VirtualCluster(hosts=made, gateway=f"{subnet}.1", bridge=bridge)


def _claim_bridge(stack: contextlib.ExitStack) -> tuple[str, str]:
    """Create the first bridge `hvN` that nobody has; return the subnet and its name."""
    for number in range(256):
        bridge = f"hv{number}"
        claim = _cgroup(bridge)
        if any(claim.parent.glob(f"{bridge}-*")):  # of a run that was killed, or is elsewhere
            continue
        with contextlib.suppress(subprocess.CalledProcessError, FileExistsError):
            claim.mkdir()
            stack.callback(_remove_cgroup, claim)
            _sh("ip", "link", "add", bridge, "type", "bridge")
            stack.callback(_sh, "ip", "link", "del", bridge)
            _sh("ip", "addr", "add", f"10.77.{number}.1/24", "dev", bridge)
            _sh("ip", "link", "set", bridge, "up")
            return f"10.77.{number}", bridge
    raise OSError("no bridge could be made: hv0 to hv255 are taken, or bridges are forbidden")


def _make_host(
    stack: contextlib.ExitStack,
    *,
    name: str,
    percent: int,
    address: str,
    bridge: str,
    folder: Path,
    hiding: str,
) -> VirtualHost:
    """Make one host; each step registers its own undoing."""
    namespace, link = f"{bridge}-{name}", f"{bridge}v{address.rpartition('.')[2]}"
    cgroup = _cgroup(f"{namespace}-{os.getpid()}")  # another network may have such a bridge
    cgroup.mkdir()
    stack.callback(_remove_cgroup, cgroup)
    set_quota(cgroup, percent=percent)
    _sh("ip", "netns", "add", namespace)
    stack.callback(_sh, "ip", "netns", "del", namespace)
    _sh("ip", "link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", namespace)
    stack.callback(_sh, "ip", "link", "del", link)  # at once: with the namespace it takes a while
    _sh("ip", "link", "set", link, "master", bridge, "up")
    _sh("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", INTERFACE)
    for interface in (INTERFACE, "lo"):
        _sh("ip", "-n", namespace, "link", "set", interface, "up")
    _sh("ip", "-n", namespace, "route", "add", "default", "via", f"{address.rpartition('.')[0]}.1")
    host = VirtualHost(
        name=name,
        address=address,
        identity_file=folder / "client",
        ssh_options=_ssh_options(name, address, folder),
        namespace=namespace,
        cgroup=cgroup,
    )
    stack.callback(_end_processes, namespace)
    sshd = _start_sshd(host, folder, hiding)
    stack.callback(sshd.wait)
    stack.callback(sshd.kill)
    return host


def _ssh_options(name: str, address: str, folder: Path) -> dict[str, str]:
    """Make the host's key; return options that accept this key alone."""
    key = folder / f"host_{name}"
    _sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    known = folder / f"known_{name}"
    known.write_text(f"{address} {key.with_suffix('.pub').read_text()}")
    return {
        "UserKnownHostsFile": str(known),
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
    }


def _hiding(home: Path) -> str:
    """Shell commands that hide from a process what a bare machine does not have.

    Args:
        home: A folder to take the place of the home.
    """
    home.mkdir()
    folders = {CHECKOUT, Path(sys.prefix)} - {Path(sys.base_prefix)}
    found = {os.path.realpath(path) for path in map(shutil.which, COMPILERS) if path}
    mounts = {
        **dict.fromkeys(found, "--bind /dev/null"),
        # The inner one first: what is in a hidden folder is no place any more.
        **dict.fromkeys(sorted(map(str, folders), reverse=True), "-t tmpfs -o size=64k none"),
        str(LOGIN_HOME): f"--bind {shlex.quote(str(home))}",  # the last: others may be in it
    }
    lines = [f"mount {what} {shlex.quote(where)}" for where, what in mounts.items()]
    return " && ".join(lines) + " && "


def _start_sshd(host: VirtualHost, folder: Path, hiding: str) -> subprocess.Popen[bytes]:
    """Start the host's sshd in its control group; all that runs over ssh inherits that."""
    Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's sshd separates privileges
    config = folder / f"{host.name}.conf"
    config.write_text(
        SSHD_CONFIG.format(port=PORT, address=host.address, folder=folder, name=host.name)
    )
    log = folder / f"{host.name}.log"
    sshd = [str(_which("sshd")), "-D", "-f", str(config), "-E", str(log)]
    own = ["unshare", "--uts", *(["--mount"] if hiding else [])]
    named = [*own, "sh", "-c", f'{hiding}hostname "$0" && exec "$@"', host.name]
    return subprocess.Popen(
        [*host.enter(), *named, *sshd],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C at the tests must not reach it before we do
    )


def _await_sshd(host: VirtualHost, folder: Path) -> None:
    """Return when the sshd has greeted; fail with its log after 10 s."""
    deadline = time.monotonic() + 10
    while True:
        try:
            with socket.create_connection((host.address, PORT), timeout=1) as greeting:
                if greeting.recv(4) == b"SSH-":
                    return
        except OSError:
            if time.monotonic() > deadline:
                log = folder / f"{host.name}.log"
                raise TimeoutError(log.read_text() if log.is_file() else "no sshd") from None
            time.sleep(0.02)


def _end_processes(namespace: str) -> None:
    """Kill what still runs in a namespace that we made, sessions of its sshd too."""
    while pids := _sh("ip", "netns", "pids", namespace).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)


def _cgroup(name: str) -> Path:
    """Folder of a control group with the CPU controller: version 1, or 2 where that is all."""
    top = Path("/sys/fs/cgroup")
    return top / "cpu" / name if (top / "cpu").is_dir() else top / name


def _remove_cgroup(cgroup: Path) -> None:
    """Remove it; the kernel lets go of it a moment after its last process has ended."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return cgroup.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _sh(*argv: str) -> str:
    """Run a program; return what it printed. Its complaint is in the error raised."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
