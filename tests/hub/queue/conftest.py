"""A hub with a queue, for those tests of it that need no other one."""

import pytest

from tests.hub.queue.queue_rig import QueueHub


@pytest.fixture
def hub(tmp_path):
    """A hub with two devices."""
    found = QueueHub(tmp_path)
    found.start()
    yield found
    found.close()
