"""How long an agent stays: told by who lends the machine, or by nobody needing it."""

import pytest

from hetero_hvd.agent.stay import AgentStay

CASES = {
    "nobody lends it, and it may wait": (None, None, [(True, 0), (True, 1e9)], [False, False]),
    "idle from the start": (None, 60, [(True, 10), (True, 69), (True, 70)], [False, False, True]),
    "a worker begins the time anew": (
        None,
        60,
        [(True, 0), (False, 50), (True, 109), (True, 110)],
        [False, False, False, True],
    ),
    "busy for ever": (None, 60, [(False, 0), (False, 1000), (False, 2000)], [False] * 3),
    "wanted back while busy": (lambda: "why", None, [(False, 0)], [True]),
    "wanted back while idle": (lambda: "why", 60, [(True, 0)], [True]),
    "not wanted back, but idle": (lambda: "", 60, [(True, 0), (True, 60)], [False, True]),
}


@pytest.mark.parametrize("case", CASES)
def test_when_a_stay_is_over(case):
    """Each look says whether there is a worker; only who lends the machine gives a reason."""
    must_leave, until_idle_seconds, looks, expected = CASES[case]
    stay = AgentStay(must_leave, until_idle_seconds)
    found = [stay.is_over(is_idle=idle, now_seconds=float(now)) for idle, now in looks]
    assert found == expected
    assert stay.reason == ("why" if "wanted back while" in case else "")
