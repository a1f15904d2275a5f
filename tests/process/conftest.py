"""Runs a script in several real Horovod processes on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).with_name("scripts")


@pytest.fixture
def run_workers(tmp_path):
    """Give `run(script, n, **arguments)`: the JSON that each of n ranks left, in rank order."""
    pytest.importorskip("horovod")
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    servers = []

    def run(script, num_workers, *, timeout_seconds=100, environment=None, **arguments):
        server = RendezvousServer()
        servers.append(server)
        port = server.start()
        slots = get_host_assignments(parse_hosts(f"localhost:{num_workers}"), num_workers)
        server.init(slots)
        processes = []
        for slot in slots:
            out = tmp_path / f"{script}.{num_workers}.{slot.rank}.json"
            variables = os.environ | {
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
                **(environment or {}),
            }
            command = [sys.executable, SCRIPTS / f"{script}.py", out, json.dumps(arguments)]
            processes.append((subprocess.Popen(command, env=variables), out))
        try:
            codes = [process.wait(timeout_seconds) for process, _ in processes]
        finally:
            for process, _ in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        assert codes == [0] * num_workers
        return [json.loads(out.read_text()) for _, out in processes]

    yield run
    for server in servers:
        server.stop()
        server._httpd.server_close()
