"""A pod for the examination: own mounts, network and user; each case makes one thing wrong.

To be run as root by `unshare --mount --net`; prints the findings of all cases as JSON.
"""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from hetero_hvd.deploy.kubernetes.options import SHARED_MEMORY
from hetero_hvd.pod import network
from hetero_hvd.pod.examination import examine
from hetero_hvd.pod.findings import PodPlaces
from hetero_hvd.security.cluster_key import make_key
from tests.kit.cpu_quota import set_quota

OWN, OTHER, SECOND, NOBODY, FAR = "10.9.8.7", "10.9.8.8", "10.7.7.7", "10.9.8.99", "10.7.7.1"
USER = 10001
PAGE, ADVERTS, AGENT = 18080, 19389, 19388
PLACES = PodPlaces(
    keys=("keys/cluster.key", "keys/token"),
    writable=(SHARED_MEMORY, "tmp", "runs"),
    driver="train-driver",
    page_port=PAGE,
    advert_port=ADVERTS,
    agent_port=AGENT,
)


def system(*words):
    """Run a program of the system."""
    subprocess.run(words, check=True, capture_output=True)


class Answers(http.server.BaseHTTPRequestHandler):
    """As an agent's `/alive`, and as what fails."""

    status = 204

    def do_GET(self):
        """One status for all."""
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def serving(address, port, status=204):
    """An HTTP server."""
    with http.server.ThreadingHTTPServer((address, port), Answers) as server:
        server.status = status
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


@contextmanager
def datagrams(address, port, answer=lambda _: b""):
    """A UDP server; says nothing unless it has an answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind((address, port))

        def serve():
            while (found := end.recvfrom(4096))[0] != b"end":
                if reply := answer(found[0]):
                    end.sendto(reply, found[1])

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", (address, port))
        thread.join()


@contextmanager
def mounted(place, *words):
    """Something is mounted there."""
    system("mount", *words, place)
    yield
    system("umount", place)


@contextmanager
def mode(path, wanted, owner=USER):
    """A file or folder has another mode or owner."""
    os.chown(path, owner, owner)
    Path(path).chmod(wanted)
    yield
    os.chown(path, USER, USER)
    Path(path).chmod(0o400 if Path(path).is_file() else 0o700)


@contextmanager
def content(path, text):
    """A file has another content."""
    before = Path(path).read_text()
    Path(path).write_text(text)
    yield
    Path(path).write_text(before)


@contextmanager
def variable(name, value):
    """An environment variable has another value; None: it is not set."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    yield
    os.environ.pop(name, None)
    if before is not None:
        os.environ[name] = before


@contextmanager
def a_core():
    """The control group allows one core."""
    top = next(p for p in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")) if p.is_dir())
    group = top / f"pod-rig-{os.getpid()}"
    group.mkdir()
    try:
        set_quota(group, percent=100)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
        (top / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        group.rmdir()


def unknown(query):
    """What a name server answers to a name that there is not."""
    return query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:]


def page():
    """The driver's page."""
    return serving(OWN, PAGE)


def agent():
    """The agent."""
    return serving(OWN, AGENT)


def ear():
    """Where the driver listens for agents."""
    return datagrams(OWN, ADVERTS)


def hosts(*addresses):
    """The driver's name has these addresses."""
    lines = (f"{address} {PLACES.driver}\n" for address in addresses)
    return content("hosts", "".join(lines))


ALL = (page, agent, ear)
CASES = {
    "as it should be": (*ALL,),
    "the driver's own pod": (page, ear),
    "a key that the group can read": (*ALL, lambda: mode("keys/cluster.key", 0o440)),
    "a key of somebody else": (*ALL, lambda: mode("keys/cluster.key", 0o400, 0)),
    "a token that is none": (*ALL, lambda: content("keys/token", "short")),
    "no keys": (*ALL, lambda: mounted("keys", "-t", "tmpfs", "none")),
    "a small shared memory": (
        *ALL,
        lambda: mounted(SHARED_MEMORY, "-t", "tmpfs", "-o", "size=64m", "none"),
    ),
    "a shared memory as large as memory": (
        *ALL,
        lambda: mounted(SHARED_MEMORY, "-t", "tmpfs", "-o", "size=9000g", "none"),
    ),
    "a shared memory on disk": (*ALL, lambda: mounted(SHARED_MEMORY, "--bind", "disk")),
    "a volume that is read-only": (
        *ALL,
        lambda: mounted("runs", "-t", "tmpfs", "-o", "ro", "none"),
    ),
    "a volume that is full": (
        *ALL,
        lambda: mounted("runs", "-t", "tmpfs", "-o", "size=4k,mode=777,nr_inodes=1", "none"),
    ),
    "a volume that is nearly full": (
        *ALL,
        lambda: mounted("runs", "-t", "tmpfs", "-o", "size=4m,mode=777", "none"),
    ),
    "a volume of somebody else": (*ALL, lambda: mode("runs", 0o755, 0)),
    "no POD_IP": (*ALL, lambda: variable("POD_IP", None)),
    "a POD_IP of another pod": (*ALL, lambda: variable("POD_IP", NOBODY)),
    "another network towards the driver": (agent, lambda: hosts(FAR)),
    "no name server": (agent, lambda: content("hosts", "")),
    "no such driver": (
        agent,
        lambda: content("hosts", ""),
        lambda: datagrams("127.0.0.53", 53, unknown),
    ),
    "two drivers": (*ALL, lambda: hosts(OWN, OTHER), lambda: serving(OTHER, PAGE)),
    "a driver that has ended": (agent,),
    "a network that lets nothing through": (agent, lambda: hosts(NOBODY)),
    "neither agent nor driver here": (ear, lambda: hosts(OTHER), lambda: serving(OTHER, PAGE)),
    "an agent that fails": (
        ear,
        lambda: serving(OWN, AGENT, 500),
        lambda: hosts(OTHER),
        lambda: serving(OTHER, PAGE),
    ),
    "a sidecar": (*ALL, lambda: serving("127.0.0.1", 15021)),
    "threads of the node": (*ALL, lambda: variable("OMP_NUM_THREADS", None)),
    "a wrong number of threads": (*ALL, lambda: variable("OMP_NUM_THREADS", "many")),
    "more threads than cores": (*ALL, a_core, lambda: variable("OMP_NUM_THREADS", "2")),
    "an image that asks for all GPUs": (
        *ALL,
        lambda: variable("NVIDIA_VISIBLE_DEVICES", "all"),
    ),
}


def prepare():
    """A pod in which all is well, but that nobody answers."""
    for folder in ("keys", "tmp", "runs", "disk"):
        Path(folder).mkdir()
        os.chown(folder, USER, USER)
    for name in ("cluster.key", "token"):
        make_key(Path("keys") / name)
        os.chown(f"keys/{name}", USER, USER)
    Path("hosts").write_text(f"{OWN} {PLACES.driver}\n")
    Path("resolv.conf").write_text("nameserver 127.0.0.53\noptions timeout:1 attempts:1\n")
    for name in ("hosts", "resolv.conf"):
        system("mount", "--bind", name, f"/etc/{name}")
    system("mount", "-t", "tmpfs", "-o", "size=256m", "none", SHARED_MEMORY)
    system("ip", "link", "set", "lo", "up")
    for name, address in (("eth0", OWN), ("eth1", SECOND)):
        system("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        system("ip", "addr", "add", f"{address}/24", "dev", name)
        for end in (name, f"{name}-end"):
            system("ip", "link", "set", end, "up")
    system("ip", "addr", "add", f"{OTHER}/24", "dev", "eth0")
    os.environ |= {"POD_IP": OWN, "OMP_NUM_THREADS": "1", "NVIDIA_VISIBLE_DEVICES": "void"}
    network.SECONDS = 1.0
    network.REFUSAL_SECONDS = 0.05  # it is told at once here


def examined(case):
    """The findings with what is wrong in a case, as the user of the image."""
    with ExitStack() as stack:
        for make in CASES[case]:
            stack.enter_context(make())
        os.seteuid(USER)
        try:
            return [asdict(one) for one in examine(replace(PLACES), list)]
        finally:
            os.seteuid(0)


if __name__ == "__main__":
    prepare()
    json.dump({case: examined(case) for case in CASES}, sys.stdout)
