"""Whoever has come by ssh is told how to see the page at home."""

import pytest

from hetero_hvd.driver.output.ssh_tunnel import ssh_tunnel

PAGE = "http://127.0.0.1:4242"
SSH = "10.0.0.9 50000 10.0.0.1 22"
LINE = "ssh -N -L 4242:127.0.0.1:4242 ada@10.0.0.1   then open http://localhost:4242/"


@pytest.mark.parametrize(
    ("url", "environment", "line"),
    [
        (PAGE, {"SSH_CONNECTION": SSH, "USER": "ada"}, LINE),
        (PAGE, {"SSH_CONNECTION": SSH}, LINE.replace("ada@", "")),
        (PAGE, {"SSH_CONNECTION": SSH, "USER": "-x; rm"}, LINE.replace("ada@", "")),
        (
            PAGE,
            {"SSH_CONNECTION": "fe80::1 5 fe80::2 2222", "USER": "ada"},
            "ssh -N -L 4242:127.0.0.1:4242 -p 2222 ada@fe80::2   then open http://localhost:4242/",
        ),
        (
            "https://[::1]:4242",
            {"SSH_CONNECTION": SSH, "USER": "ada"},
            "ssh -N -L '4242:[::1]:4242' ada@10.0.0.1   then open https://localhost:4242/",
        ),
        (PAGE, {}, None),
        ("http://10.0.0.1:4242", {"SSH_CONNECTION": SSH}, None),
        ("", {"SSH_CONNECTION": SSH}, None),
        (PAGE, {"SSH_CONNECTION": "a b -oProxyCommand=x 22"}, None),
        (PAGE, {"SSH_CONNECTION": "10.0.0.9 1 10.0.0.1 x"}, None),
        (PAGE, {"SSH_CONNECTION": "10.0.0.1"}, None),
    ],
)
def test_the_line_fits_the_connection(url, environment, line):
    """From the loopback only, and nothing of the environment reaches a shell unchecked."""
    assert ssh_tunnel(url, environment) == line
