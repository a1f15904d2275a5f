"""The address of this machine that a server listens at, and is announced by."""

from __future__ import annotations

import ipaddress

from hetero_hvd.config.value_types import is_one_address
from hetero_hvd.errors import UserError


def own_address(text: str) -> str:
    """As it was given with `--address`.

    Raises:
        UserError: It is none, or none by which one machine is reached.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise UserError(f"--address: found {text!r}, must be an IPv4 or IPv6 address") from error
    is_reached = is_one_address(address)
    if isinstance(address, ipaddress.IPv6Address):
        is_reached &= not (address.is_link_local or address.ipv4_mapped or address.scope_id)
    if not is_reached:
        raise UserError(
            f"--address: found {text!r}, must be one by which other machines reach this one: not "
            "0.0.0.0 or ::, none of a group or a link, none with an interface; leave it out "
            "to listen everywhere"
        )
    return str(address)
