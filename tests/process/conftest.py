"""Runs a script in several real Horovod processes on this machine."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).with_name("scripts")


def variables_of(slot, port):
    """What Horovod's launcher would set for one worker."""
    return os.environ | {
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "60",
        "OMP_NUM_THREADS": "1",
    }


def exit_codes(commands, *, timeout_seconds):
    """Run the (command, environment) pairs side by side; none outlives this call."""
    processes = [subprocess.Popen(command, env=variables) for command, variables in commands]
    try:
        return [process.wait(timeout_seconds) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def start_workers():
    """Give `start(folder, script, n, **arguments)`: the JSON that each rank left, in rank order.

    A rank whose exit code is not 0 fails the test, unless `codes` names what is expected of each.
    """
    pytest.importorskip("horovod")
    hosts = importlib.import_module("horovod.runner.common.util.hosts")
    http_server = importlib.import_module("horovod.runner.http.http_server")

    def start(folder, script, num_workers, *, timeout_seconds=100, codes=None, **arguments):
        slots = hosts.get_host_assignments(
            hosts.parse_hosts(f"localhost:{num_workers}"), num_workers
        )
        outputs = [folder / f"{script}.{slot.rank}.json" for slot in slots]
        server = http_server.RendezvousServer()
        port = server.start()
        try:
            server.init(slots)
            names = [sys.executable, SCRIPTS / f"{script}.py"]
            commands = [
                ([*names, out, json.dumps(arguments)], variables_of(slot, port))
                for slot, out in zip(slots, outputs, strict=True)
            ]
            found = exit_codes(commands, timeout_seconds=timeout_seconds)
        finally:
            server.stop()
            server._httpd.server_close()
        assert found == (codes or [0] * num_workers)
        return [json.loads(out.read_text()) for out in outputs if out.exists()]

    return start


@pytest.fixture
def run_workers(tmp_path, start_workers):
    """`start_workers` in a folder of this test."""
    return lambda script, num_workers, **rest: start_workers(tmp_path, script, num_workers, **rest)
