"""What a supervisor says at its end, and what it counts as when it does not."""

import pytest

from hetero_hvd.driver.workers.goodbye import Goodbye

SIGN = b"\x01hetero-hvd:goodbye 7\x01"
OUTPUTS = [
    (b"words\n" + SIGN, b"words\n", 7),
    (b"words without an end" + SIGN, b"words without an end", 7),
    (SIGN + b"late words", b"late words", 7),
    (b"\x01hetero-hvd:goodbye 137\x01", b"", 137),
    (b"words\n", b"words\n", None),
    (b"", b"", None),
    (SIGN[:-1], SIGN[:-1], None),
    (b"\x01hetero-hvd:goodbye x\x01", b"\x01hetero-hvd:goodbye x\x01", None),
    (b"\x01hetero-hvd:R 0.100 0.200\x01", b"\x01hetero-hvd:R 0.100 0.200\x01", None),
    (b"\x01", b"\x01", None),
]


@pytest.mark.parametrize(("written", "shown", "code"), OUTPUTS)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_it_is_found_wherever_the_output_is_cut(written, shown, code, size):
    """And nothing else is taken out, or kept back for good."""
    goodbye = Goodbye()
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    found = b"".join(map(goodbye.feed, pieces)) + goodbye.flush()
    assert (found, goodbye.exit_code) == (shown, code)


def test_what_is_no_beginning_of_it_is_shown_at_once():
    """A line without an end, say, or a sign of another kind."""
    goodbye = Goodbye()
    assert goodbye.feed(b"50 %") == b"50 %"
    assert goodbye.feed(b"\x01hetero-hvd:sample ") == b"\x01hetero-hvd:sample "
