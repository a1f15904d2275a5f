"""What the tests of parts share."""

from __future__ import annotations

import pytest
from rendezvous import Hub, run_together
from sharded_script import Script

from hetero_hvd.worker.shards import exchanges, sharded_optimizer


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """So that each operation comes several times."""
    monkeypatch.setattr(exchanges, "PACK_BLOCKS", 4)
    monkeypatch.setattr(exchanges, "MOST_PACK_BLOCKS", 4)
    monkeypatch.setattr(sharded_optimizer, "MOVE_BLOCKS", 3)


@pytest.fixture(scope="session")
def undisturbed():
    """The same with the whole state on each worker."""
    return run_together(Hub(3), lambda context: Script(context, shards=False).run())[0]
