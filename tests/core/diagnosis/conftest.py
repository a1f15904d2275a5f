"""What tests of verdicts share."""

import pytest

from .watched_tables import Watched


@pytest.fixture
def watched():
    """A watch that was shown nothing yet."""
    return Watched()
