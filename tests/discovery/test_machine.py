"""Who this machine is."""

import pytest

from hetero_hvd.security.connection_limiter import plain_address


@pytest.mark.parametrize(
    ("told", "plain"),
    [("::ffff:10.0.0.1", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("fe80::1", "fe80::1")],
)
def test_addresses_are_shown_as_people_write_them(told, plain):
    """Also on a port that listens for both kinds of addresses."""
    assert plain_address(told) == plain
