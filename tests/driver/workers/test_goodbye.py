"""What a supervisor says at its end, and what it counts as when it does not."""

import random

import pytest

from hetero_hvd.driver.workers.goodbye import Goodbye
from hetero_hvd.probes.sampling.sample_signs import MAX_SIGN_BYTES, sample_signs

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


OTHERS = [
    b"\x01hetero-hvd:R 0.100 0.200\x01",
    *sample_signs(b"x"),
    *sample_signs(random.Random(0).randbytes(9000)),  # noqa: S311
]


@pytest.mark.parametrize("sign", OTHERS, ids=range(len(OTHERS)))
@pytest.mark.parametrize("cut", [0, 1, 5, 20, -1])
def test_a_sign_of_another_kind_is_passed_on_when_it_is_whole(sign, cut):
    """With its end, which could be the beginning of a good-bye; wherever it is cut before."""
    goodbye = Goodbye()
    found = goodbye.feed(b"words" + sign[:cut]) + goodbye.feed(sign[cut:])
    assert found == b"words" + sign
    assert goodbye.feed(SIGN) == b""
    assert goodbye.exit_code == 7


def test_what_is_no_beginning_of_it_is_shown_at_once():
    """A line without an end, say, or what only begins as a sign does."""
    goodbye = Goodbye()
    assert goodbye.feed(b"50 %") == b"50 %"
    assert goodbye.feed(b"\x01hetero x") == b"\x01hetero x"
    long = b"\x01hetero-hvd:" + b"x" * MAX_SIGN_BYTES
    assert goodbye.feed(long) == long
