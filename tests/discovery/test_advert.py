"""Adverts: only what a holder of the key signed a moment ago is believed, and only once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_hvd.discovery import advert as adverts
from hetero_hvd.discovery.advert import Advert, Verifier, sign
from hetero_hvd.errors import DiscoveryError

KEY, NOW = bytes(range(32)), 1_000_000.0


def make(**more):
    """An advert, signed at NOW."""
    fields = {
        "name": "alpha",
        "machine": "0" * 32,
        "instance": bytes(8),
        "addresses": ("10.0.0.1",),
        "port": 9388,
        "slots": 1,
        "issued_at_seconds": NOW,
        "nonce": bytes(16),
    }
    return Advert(**(fields | more))


def as_text(properties):
    """As zeroconf puts properties into a TXT record."""
    strings = [name.encode() + b"=" + value for name, value in properties.items()]
    return b"".join(bytes([len(string)]) + string for string in strings)


def check(advert, *, key=KEY, now_seconds=NOW, verifier=None):
    """What a verifier makes of it."""
    return (verifier or Verifier(KEY)).check(as_text(sign(key, advert)), now_seconds=now_seconds)


def test_a_genuine_advert_comes_through_whole():
    """Also one that needs several strings and has all its fields."""
    advert = make(
        addresses=("10.0.0.1", "fd00::1"),
        devices=tuple(f"GPU-{n:036}" for n in range(12)),
        figures={"matrix product float32": 2.5e9},
    )
    assert check(advert) == advert


@pytest.mark.parametrize(
    ("advert", "verdict"),
    [
        (make(name="a;reboot"), "unsound"),
        (make(name="$(reboot)"), "unsound"),
        (make(name="../x"), "unsound"),
        (make(name="-oProxyCommand=x"), "unsound"),
        (make(machine="../../../etc"), "unsound"),
        (make(addresses=("example.org",)), "unsound"),
        (make(addresses=("224.0.0.1",)), "unsound"),
        (make(addresses=("10.0.0.1", "255.255.255.255")), "unsound"),
        (make(addresses=("::ffff:0.0.0.0",)), "unsound"),
        (make(addresses=("::ffff:224.0.0.1",)), "unsound"),
        (make(addresses=("fe80::1%eth0",)), "unsound"),
        (make(issued_at_seconds=NOW - adverts.LIFETIME_SECONDS - 1), "stale"),
        (make(issued_at_seconds=NOW + adverts.MAX_SKEW_SECONDS + 1), "stale"),
        (make(issued_at_seconds=float("nan")), "stale"),
        (make(started_at_seconds=float("inf")), "of another version"),
        (make(started_at_seconds=float("nan")), "of another version"),
    ],
)
def test_even_a_holder_of_the_key_is_not_believed_everything(advert, verdict):
    """Names, addresses and times are checked after the signature, before all else."""
    verifier = Verifier(KEY)
    assert check(advert, verifier=verifier) == verdict
    assert verifier.ignored == {verdict: 1}


def test_an_advert_of_another_key_is_told_as_such():
    """Who does not hold the key announces nothing."""
    assert check(make(), key=bytes(32)) == "of another key"


def test_nothing_is_believed_twice_or_in_the_wrong_order():
    """A recorded advert, the last or an earlier one, changes nothing; also under another name."""
    verifier = Verifier(KEY)
    assert isinstance(check(make(issued_at_seconds=NOW), verifier=verifier), Advert)
    assert check(make(issued_at_seconds=NOW), verifier=verifier) == "replayed"
    assert check(make(issued_at_seconds=NOW - 1, name="b"), verifier=verifier) == "replayed"
    assert isinstance(check(make(issued_at_seconds=NOW + 1), verifier=verifier), Advert)


WHO_SAYS_IT_AGAIN = {
    "the agent": ("10.0.0.1", adverts.SAID_AGAIN),
    "the agent, at another address": ("fd00::1", adverts.SAID_AGAIN),
    "this machine, on its loopback": ("127.0.0.1", adverts.SAID_AGAIN),
    "a hub": (None, adverts.SAID_AGAIN),
    "somebody else": ("10.0.0.2", adverts.REPLAYED),
    "somebody else, over IPv6": ("fe80::1%eth0", adverts.REPLAYED),
    "nobody knows who": ("", adverts.REPLAYED),
}


@pytest.mark.parametrize("seconds", [0.0, -15.0])
@pytest.mark.parametrize("case", WHO_SAYS_IT_AGAIN)
def test_an_agent_that_is_heard_two_ways_is_no_attacker(case, seconds):
    """The newest advert or one before it is not believed anew, and counts as whose doing it is."""
    sender, verdict = WHO_SAYS_IT_AGAIN[case]
    verifier = Verifier(KEY)
    check(make(addresses=("10.0.0.1", "fd00::1")), verifier=verifier)
    late = make(addresses=("10.0.0.1", "fd00::1"), issued_at_seconds=NOW + seconds)
    text = as_text(sign(KEY, late))
    assert verifier.check(text, now_seconds=NOW, sender=sender) == verdict
    assert verifier.ignored == ({verdict: 1} if verdict == adverts.REPLAYED else {})


def test_what_a_later_version_adds_is_ignored():
    """Its agent says of which version it is to a driver that asks it."""
    later = msgspec.defstruct("Later", [("extra", int, 5)], bases=(Advert,), kw_only=True)
    found = check(later(**msgspec.structs.asdict(make(version="9.9"))))
    assert found == make(version="9.9")


def test_an_advert_too_large_for_a_packet_is_not_sent():
    """It would never arrive."""
    with pytest.raises(DiscoveryError, match="bytes, must be at most"):
        sign(KEY, make(devices=("x" * 128,) * 16))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=1500), st.booleans())
def test_no_bytes_break_the_verifier(content, is_signed):
    """Garbage, also garbage with a genuine signature, is one of the known verdicts."""
    if is_signed:
        blob = adverts._mac(KEY, content[:900]) + content[:900]
        chunks = [blob[at : at + 250] for at in range(0, len(blob), 250)]
        content = as_text({str(index): chunk for index, chunk in enumerate(chunks)})
    verdict = Verifier(KEY).check(content, now_seconds=NOW)
    signed = {"of another version", "malformed"}  # malformed: with nothing behind the signature
    assert verdict in (signed if is_signed else {"malformed", "of another key"})


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_bit_goes_unnoticed(at, change):
    """Whatever byte of an advert is changed on its way, it is not believed."""
    text = bytearray(as_text(sign(KEY, make())))
    text[at % len(text)] ^= change
    assert isinstance(Verifier(KEY).check(bytes(text), now_seconds=NOW), str)


def test_100_kilobytes_cost_nothing():
    """They are refused by their length alone."""
    assert Verifier(KEY).check(b"\xff" * 100_000, now_seconds=NOW) == "malformed"
