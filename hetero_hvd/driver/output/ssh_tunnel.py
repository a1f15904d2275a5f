"""How to see a page on the loopback of a machine from where its user has come by ssh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from hetero_hvd.config.value_types import host_in_url, is_loopback
from hetero_hvd.core.digits import whole_number

SSH_PORT = 22
_USER = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")


def ssh_tunnel(url: str, environment: Mapping[str, str]) -> str | None:
    """The command that brings a page to the user's own machine.

    Args:
        url: Of the page.
        environment: Of a process that the user has started; sshd sets `SSH_CONNECTION` there:
            address and port of the client, then ours.

    Returns:
        A line for the user's own shell; None: the page is not on the loopback, or the user has
        come in another way.
    """
    place = urlsplit(url)
    host = place.hostname or ""
    told = environment.get("SSH_CONNECTION", "").split()
    if len(told) != 4 or not place.port or not is_loopback(host):  # noqa: PLR2004
        return None
    try:
        server, ssh_port = str(ip_address(told[2])), whole_number(told[3])
    except ValueError:  # somebody else has set it
        return None
    if ssh_port is None:
        return None
    user = environment.get("USER", "")
    who = f"{user}@{server}" if _USER.fullmatch(user) else server
    port = "" if ssh_port == SSH_PORT else f"-p {ssh_port} "
    forward = shlex.quote(f"{place.port}:{host_in_url(host)}:{place.port}")
    return f"ssh -N -L {forward} {port}{who}   then open {place.scheme}://localhost:{place.port}/"
