"""Agents behind a router, where multicast ends, announce themselves to the driver's address."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_hvd.discovery.advert import sign
from hetero_hvd.discovery.multicast import packet_of
from hetero_hvd.security.cluster_key import make_key, read_key
from tests.cluster.test_agents import Scene
from tests.discovery.test_advert import make
from tests.kit.virtual_cluster import INTERFACE, running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(180)]
PORT = 9389
FORWARDS = (
    Path("/proc/sys/net/ipv4/ip_forward"),
    Path("/proc/sys/net/ipv6/conf/all/forwarding"),
)
SEND = """
import socket, sys
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for word in sys.argv[3:]:
    end.sendto(bytes.fromhex(word), (sys.argv[1], int(sys.argv[2])))
"""
METADATA = """
import http.server, pathlib
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(pathlib.Path("preempted").read_bytes())
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
NOISE_BYTES = (1, 12, 100, 1400)
"""Of packets that hold nothing of sense."""
LOOK = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"


@pytest.fixture
def router():
    """This machine passes packets on between its networks; never those of multicast."""
    before = [forward.read_text() for forward in FORWARDS]
    for forward in FORWARDS:
        forward.write_text("1")
    yield
    for forward, text in zip(FORWARDS, before, strict=True):
        forward.write_text(text)


@pytest.fixture
def driver_network(virtual_cluster, router, tmp_path):  # noqa: ARG001 - it is on
    """A network of its own with the driver's host, gamma."""
    virtual_cluster({"alpha": 100, "beta": 50})  # or the reason why there is none
    folder = tmp_path / "gamma"
    folder.mkdir()
    with running_cluster({"gamma": 100}, folder=folder) as cluster:
        yield cluster


def over_ipv6(stack, cluster, *names):
    """Give hosts an address of IPv6 and a route beyond this machine until the stack closes."""
    prefix = f"fd77:{cluster.bridge.removeprefix('hv')}::"
    for number, name in enumerate(names, 2):
        on = ["ip", "-n", cluster[name].namespace]
        given = [f"{prefix}{number}/64", "dev", INTERFACE]
        subprocess.run([*on, "addr", "add", *given, "nodad"], check=True)
        stack.callback(subprocess.run, [*on, "addr", "del", *given], check=True)
    here = [f"{prefix}1/64", "dev", cluster.bridge]
    subprocess.run(["ip", "addr", "add", *here, "nodad"], check=True)
    stack.callback(subprocess.run, ["ip", "addr", "del", *here], check=True)
    for name in names:
        on = ["ip", "-n", cluster[name].namespace, "-6", "route"]
        subprocess.run([*on, "add", "default", "via", f"{prefix}1"], check=True)
    return f"{prefix}2"


def status_of(scene, host):
    """What the job's page tells, asked on the driver's host."""
    url = re.search(r"status: (http://\S+)", scene.log.read_text())[1]
    command = [*host.enter(), sys.executable, "-c", LOOK, url]
    return json.loads(subprocess.check_output(command, text=True))


def send(host, target, *packets):
    """Packets from a host."""
    words = [packet.hex() for packet in packets]
    command = [*host.enter(), sys.executable, "-c", SEND, target, str(PORT), *words]
    subprocess.run(command, check=True)


def hostile(key_file, other_key_file):
    """Packets of each kind that nobody must believe, by the reason."""
    key, other = read_key(key_file), read_key(other_key_file)

    def packet(signing_key, seconds, machine):
        at_seconds = time.time() + seconds
        advert = make(name="evil", machine=machine * 32, issued_at_seconds=at_seconds, slots=0)
        return packet_of("evil", 9388, sign(signing_key, advert))

    genuine = packet(key, 0.0, "a")
    return {
        "of another key": [
            packet(other, 0.0, "b"),
            genuine[:-5] + b"?" * 5,
            packet_of("evil", 9388, {"0": b"x" * 40}),
        ],
        "stale": [packet(key, -100.0, "c"), packet(key, 100.0, "d")],
        "replayed": [genuine, genuine, packet(key, -1.0, "a")],  # the first of them is believed
    }


def attack(sender, target, attacks, counted):
    """Send what nobody must believe, beside noise, and wait until each of it was counted."""
    before = counted()
    for packets in attacks.values():
        send(sender, target.address, *packets)
    send(sender, target.address, *map(os.urandom, NOISE_BYTES))
    deadline = time.monotonic() + 20
    expected = {"of another key": 3, "stale": 2, "replayed": 2}
    while True:
        counts = {n: c - before.get(n, 0) for n, c in counted().items()}
        if all(counts.get(name, 0) >= number for name, number in expected.items()):
            break
        assert time.monotonic() < deadline, counts
        time.sleep(0.2)


@pytest.mark.matrix
def test_agents_beyond_a_router_train(virtual_cluster, driver_network, tmp_path):
    """Both join by an address alone, one over IPv6; what is forged, old or repeated is counted.

    One leaves in order, as the cloud is about to take its machine: its good-bye comes the same way.
    """
    cluster = virtual_cluster({"alpha": 100, "beta": 50})
    driver_host = driver_network["gamma"]
    with contextlib.ExitStack() as stack, Scene(tmp_path, cluster) as scene:
        over_ipv6(stack, cluster, "alpha", "beta")
        ipv6 = over_ipv6(stack, driver_network, "gamma")
        driver = scene.drive(on=driver_host, driver_address=driver_host.address, listen=PORT)
        scene.wait_for("waiting for agents: 0 workers of 1")
        unheard = scene.agent("alpha")
        time.sleep(4)  # its multicast has ended at the router
        assert "announces itself" not in scene.log.read_text()
        unheard.send_signal(signal.SIGTERM)
        assert unheard.wait(30) == 0

        targets = {"alpha": f"{driver_host.address}:{PORT}", "beta": f"[{ipv6}]:{PORT}"}
        (tmp_path / "preempted").write_text("FALSE")
        scene.start_on("alpha", [sys.executable, "-c", METADATA])
        cloud = ("--cloud", "gcp", "--metadata-url", "http://127.0.0.1:8000")
        for name, target in targets.items():
            scene.agent(name, "--announce-to", target, *(cloud if name == "alpha" else ()))
            scene.wait_for(f"[{name}:0] takes part")

        make_key(tmp_path / "other.key")
        attacks = hostile(scene.key, tmp_path / "other.key")
        attack(
            cluster["beta"],
            driver_host,
            attacks,
            lambda: status_of(scene, driver_host)["ignored_adverts"],
        )

        (tmp_path / "preempted").write_text("TRUE")
        scene.wait_for("alpha:0 is no longer announced and leaves")
        scene.wait_for("alpha:0 has left")
        assert "alpha:0 exited" not in scene.log.read_text()
        step = status_of(scene, driver_host)["step"]
        deadline = time.monotonic() + 30
        while status_of(scene, driver_host)["step"] < step + 20:
            assert time.monotonic() < deadline, scene.log.read_text()
            time.sleep(0.2)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(40) == 143
