"""An owner is there at once, and has gone when nothing was seen of him for as long as is asked."""

import pytest

from hetero_hvd.core.guard.owner_presence import OwnerPresence

SEEN, NOTHING = "a file is there", ""
LOOKS = {
    "never": (False, {0: NOTHING, 100: NOTHING}, []),
    "at first": (False, {0: SEEN, 9: SEEN}, [0]),
    "comes and goes": (False, {0: NOTHING, 1: SEEN, 2: NOTHING, 10: NOTHING, 11: NOTHING}, [1, 11]),
    "comes again": (False, {0: SEEN, 8: NOTHING, 9: SEEN, 18: NOTHING, 19: NOTHING}, [0, 19]),
    "was there": (True, {0: NOTHING, 9: NOTHING, 10: NOTHING}, [10]),
    "was there and is": (True, {0: SEEN, 12: NOTHING, 13: SEEN}, [12, 13]),
}


@pytest.mark.parametrize(("is_here", "looks", "changes"), LOOKS.values(), ids=LOOKS)
def test_when_he_comes_and_goes(is_here, looks, changes):
    """After ten seconds here; in between he needs to be seen less clearly."""
    presence = OwnerPresence(10, is_here=is_here)
    assert [at for at, seen in looks.items() if presence.look(seen, at)] == changes
    assert presence.load_limit(1.0) == (0.6 if presence.words else 1.0)
