"""Where a server listens that is announced: at an address by which others reach it."""

from __future__ import annotations

import pytest

from hetero_hvd.cli.own_address import own_address
from hetero_hvd.errors import UserError

GIVEN = {
    "10.0.0.1": "10.0.0.1", "127.0.0.1": "127.0.0.1", "fd00::1": "fd00::1",
    "fd00:0:0::1": "fd00::1", "::1": "::1",
    "0.0.0.0": None, "::": None, "255.255.255.255": None, "224.0.0.1": None, "ff02::1": None,  # noqa: S104 - is refused
    "fe80::1": None, "fe80::1%eth0": None, "fd00::1%eth0": None, "": None, "host": None,
    "::ffff:10.0.0.1": None, "::ffff:0.0.0.0": None, "::ffff:224.0.0.1": None,
}  # fmt: skip
"""Text to the address; None: it is refused."""


@pytest.mark.parametrize("text", GIVEN)
def test_an_address_is_one_of_this_machine_alone(text):
    """All else is refused in one line, before anything listens."""
    if GIVEN[text] is not None:
        assert own_address(text) == GIVEN[text]
        return
    with pytest.raises(UserError, match="--address: found") as found:
        own_address(text)
    assert "\n" not in str(found.value)
