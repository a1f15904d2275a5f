"""A real Prometheus, a real job: whose driver is killed, of that one is told, once."""

import json
import re
import shutil
import signal
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hetero_hvd.monitoring.files import WatchedPlaces
from tests.leftovers import wait_until
from tests.monitoring.prometheus_rig import Prometheus

pytestmark = [
    pytest.mark.process,
    pytest.mark.matrix,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus"),
]
CHECKPOINTS = {"checkpoint_seconds": 0.2}


class Receiver(BaseHTTPRequestHandler):
    """Takes alerts in the place of Alertmanager, which is told of each again and again."""

    def do_POST(self):
        """Keep them."""
        self.server.told += json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def alerts():
    """A receiver that knows all that it was told."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.told = []
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def episodes(server):
    """(alert, run, when it began) of all that was told."""
    return {(a["labels"]["alertname"], a["labels"].get("run"), a["startsAt"]) for a in server.told}


def is_over(alert):
    """Whether it has ended; while it fires its end is some minutes ahead."""
    return alert["endsAt"][:19] <= f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"


def is_firing(prometheus):
    """Whether any alert is."""
    return bool(prometheus.found('ALERTS{alertstate="firing"}'))


def sooner(rules):
    """The same rules with seconds in the place of minutes for a lost driver."""
    before, name, after = rules.partition("      - alert: HeteroHvdDriverLost\n")
    assert name
    changed, number = re.subn(r"(for: )1m", r"\g<1>4s", after, count=2)
    assert number == 2
    return before + name + changed


def test_a_killed_driver_is_told_of_once_until_its_run_is_gone_on_with(start_job, tmp_path, alerts):
    """Its neighbour and its end in order are no reason."""
    watched = WatchedPlaces(runs=str(tmp_path))
    receiver = f"127.0.0.1:{alerts.server_port}"
    prometheus = Prometheus(tmp_path, watched, receiver=receiver, change=sooner)
    try:
        job = start_job(names=("alpha",), script=("1000",), **CHECKPOINTS)
        prometheus.wait_for("hetero_hvd_checkpoint_step > 0", "run", ["out"], 90)
        job.process.send_signal(signal.SIGKILL)
        job.process.wait()
        wait_until(lambda: episodes(alerts), 60, "the alert")
        ((name, run, _),) = episodes(alerts)
        assert (name, run) == ("HeteroHvdDriverLost", "out")
        assert not is_over(alerts.told[-1])
        again = start_job("--resume", "out", names=("alpha",), script=("1000",), **CHECKPOINTS)
        again.wait_for(r"has found (\S+): step (\d+)")
        wait_until(lambda: not is_firing(prometheus), 60, "the end of the alert")
        wait_until(lambda: is_over(alerts.told[-1]), 60, "word of its end")
        again.process.send_signal(signal.SIGINT)
        assert again.wait() == 130
        prometheus.wait_for("up", "run", [])
        assert not is_firing(prometheus)
        assert len(episodes(alerts)) == 1
    finally:
        prometheus.close()
