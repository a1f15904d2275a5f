"""What a supervisor says is taken out of its worker's output, wherever that is cut."""

import os

import pytest

from hetero_hvd.driver.output.signs import SignFilter
from hetero_hvd.probes.sampling.sample_signs import MAX_SIGN_BYTES, sample_signs

SIGN = b"\x01hetero-hvd:R 12.500 13.250\x01"
SAMPLES = {"short": b"{}", "of several signs": os.urandom(20_000).hex().encode()}


def taken_out(stream, size):
    """The worker's own bytes, looks and samples of a stream that comes in pieces."""
    signs_of, own, looks, samples = SignFilter(), b"", [], []
    for start in range(0, len(stream), size):
        data, found = signs_of.feed(stream[start : start + size])
        own += data
        looks += found.looks
        samples += found.samples
    return own + signs_of.flush(), looks, samples


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_looks_are_taken_out_wherever_the_output_is_cut(size):
    """The worker's own bytes stay, in order, also a mark of its own and half a sign at the end."""
    stream = b"one\ntw" + SIGN + b"o\n\x01 mine" + SIGN + b"\nlast \x01hetero"
    own, looks, samples = taken_out(stream, size)
    assert own == b"one\ntwo\n\x01 mine\nlast \x01hetero"
    assert (looks, samples) == ([("R", 12.5, 13.25)] * 2, [])


@pytest.mark.parametrize("size", [1, 4096, 100_000])
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_samples_come_whole(size, sample):
    """Their signs are never longer than what the system writes in one piece."""
    signs = list(sample_signs(sample))
    assert all(len(sign) <= MAX_SIGN_BYTES for sign in signs)
    stream = b"own\n" + b"between".join([*signs, SIGN, b""])
    own, looks, samples = taken_out(stream, size)
    assert own == b"own\n" + b"between" * (len(signs) + 1)
    assert (len(looks), samples) == (1, [sample])


MEANT_BADLY = {
    "no base64": b"1 1 =====",
    "not compressed": b"1 1 aGVsbG8=",
    "no numbers": b"a b c",
    "too few words": b"1",
    "a later piece alone": b"2 2 eJwDAAAAAAE=",
    "pieces without end": b"1 99999999999999999999 eJwDAAAAAAE=",
    "more pieces than there are": b"3 2 eJwDAAAAAAE=",
    "a negative number": b"-1 -1 eJwDAAAAAAE=",
}


@pytest.mark.parametrize("words", MEANT_BADLY.values(), ids=MEANT_BADLY)
def test_a_script_may_print_what_looks_like_a_sample(words):
    """It is no sample, and whole ones that follow are read."""
    sign = b"\x01hetero-hvd:sample " + words + b"\x01"
    own, _, samples = taken_out(sign * 3 + b"own" + b"".join(sample_signs(b"{}")), 50)
    assert (own, samples) == (b"own", [b"{}"])


def test_what_grows_without_end_when_unpacked_is_none():
    """A megabyte is more than any sample has."""
    (sign,) = sample_signs(bytes(2**20))
    assert taken_out(sign, 4096)[2] == [bytes(2**20)]
    assert list(sample_signs(bytes(2**20 + 1))) == []


LOOKS = [b"R 1.2.3 4.0", b"R . .", b"R 1. .5", b"R -1.0 1.0", b"R nan inf", b"R 1e5 1.0", b"R 1 2"]
LOOKS += [b"R " + b"9" * 400 + b".0 1.0", "R \u0663.0 1.0".encode(), b" 1.0 1.0", b"RR 1.0 1.0"]


@pytest.mark.parametrize("words", LOOKS)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_script_may_print_what_looks_like_a_look(words, size):
    """It is shown as any of its words, and a real one that follows is read."""
    stream = b"own" + b"\x01hetero-hvd:" + words + b"\x01" + b"more" + SIGN
    own, looks, _ = taken_out(stream, size)
    assert (own, len(looks)) == (stream.removesuffix(SIGN), 1)
