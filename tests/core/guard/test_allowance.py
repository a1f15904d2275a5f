"""How many devices may be drained at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.guard.allowance import DRAINED_PART, DeviceInUse, allowance


def use(key, state="", *, ready=1, wanted=1):
    """A device: ill, drained, or lastingly drained."""
    is_drained = state in {"drained", "lasting"}
    return DeviceInUse(
        key=key,
        num_ready=0 if is_drained else ready,
        num_wanted=0 if is_drained else wanted,
        is_drained=is_drained,
        should_drain=state == "ill",
        is_lasting=state == "lasting",
    )


def devices(*states, **more):
    """Devices a, b, ... in these states."""
    return [use(key, state, **more) for key, state in zip("abcdefghijklmnop", states, strict=False)]


CASES = {
    "nobody is ill": (devices("", ""), 1, ([], {}, [])),
    "one of two": (devices("ill", ""), 1, (["a"], {}, [])),
    "one of two, both needed": (devices("ill", ""), 2, ([], {"a": "1 workers would be left"}, [])),
    "the only one": (devices("ill"), 1, ([], {"a": "0 workers would be left"}, [])),
    "a hot room": (
        devices(*["ill"] * 8),
        1,
        (["a", "b"], dict.fromkeys("cdefgh", "2 of 8 devices are drained"), []),
    ),
    "a second one of four": (
        devices("lasting", "ill", "", ""),
        1,
        ([], {"b": "1 of 4 devices is drained"}, []),
    ),
    "whole nodes of workers": (
        devices("ill", "", ready=4, wanted=4),
        5,
        ([], {"a": "4 workers would be left"}, []),
    ),
    "the others still start": ([use("a", "ill"), use("b", ready=0)], 1, ([], {}, [])),
    "too few are left: who could come back does": (
        devices("drained", "lasting", ""),
        2,
        ([], {}, ["a"]),
    ),
    "enough are left": (devices("drained", "", ""), 2, ([], {}, [])),
}


@pytest.mark.parametrize(("found", "min_np", "expected"), CASES.values(), ids=CASES)
def test_what_may_be_done(found, min_np, expected):
    """Whom to drain, whom not and why, and who must come back."""
    drain, refused, give_back = expected
    given_now = allowance(found, min_np=min_np)
    assert (given_now.drain, given_now.give_back) == (drain, give_back)
    assert given_now.refused.keys() == refused.keys()
    assert all(given_now.refused[key].startswith(words) for key, words in refused.items())


STATES = st.lists(st.sampled_from(["", "ill", "drained", "lasting"]), min_size=1, max_size=16)


@given(STATES, st.integers(1, 16))
def test_never_below_min_np_and_never_more_than_a_quarter(states, min_np):
    """Whatever is ill."""
    found = devices(*states)
    may = allowance(found, min_np=min_np)
    num_away = sum(device.is_drained for device in found)
    if may.drain:
        assert len(may.drain) + num_away <= max(1, len(found) // DRAINED_PART)
        assert len(found) - num_away - len(may.drain) >= min_np
    ill = {device.key for device in found if device.should_drain}
    assert {*may.drain, *may.refused} == ill, "each is drained or told why not"
