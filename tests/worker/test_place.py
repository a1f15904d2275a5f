"""Who a worker is, from its environment; what is secret there does not stay."""

import os
import subprocess

from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.session import launch_settings as node

VARIABLES = {
    "HETERO_HVD_DRIVER": "127.0.0.1:4000",
    "HETERO_HVD_WORKER": "alpha:0",
    "HETERO_HVD_HOST": "alpha-0",
    "HETERO_HVD_KEY": "ab" * 32,
    "HETERO_HVD_TLS": "a certificate",
}


def test_the_job_s_secrets_leave_the_environment_when_they_are_read(monkeypatch):
    """A process that the script starts does not inherit them; this one can be asked again."""
    monkeypatch.setattr(node, "_secrets", {})
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    place = node.read_place()
    assert (place.key, place.tls) == (b"\xab" * 32, b"a certificate")
    assert node.read_place() == place
    assert place.worker == WorkerId("alpha", 0)
    assert not node.SECRETS & os.environ.keys()
    child = subprocess.check_output(["env"], text=True)
    assert "HETERO_HVD_HOST" in child
    assert "ab" * 32 not in child
    assert "a certificate" not in child
