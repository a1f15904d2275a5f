"""Each store of checkpoints in its turn, empty."""

from contextlib import ExitStack
from functools import cache

import fsspec
import pytest

from hetero_hvd.worker.recovery.checkpoints.registry import store_at
from tests.kit.object_servers import object_server

from .store_rigs import PACKAGES, RIGS


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Those of object stores that run, each since it was asked for."""
    with ExitStack() as stack:
        yield cache(
            lambda scheme: stack.enter_context(
                object_server(scheme, tmp_path_factory.mktemp(scheme))
            )
        )


@pytest.fixture(params=RIGS, ids=lambda scheme: scheme or "folder")
def rig(request, servers, tmp_path, monkeypatch):
    """One of the stores; fsspec finds it, and no server of another file's tests, and forgets it."""
    if request.param not in PACKAGES:
        yield RIGS[request.param](tmp_path)
        return
    pytest.importorskip(PACKAGES[request.param])
    for name, value in servers(request.param).environment.items():
        monkeypatch.setenv(name, value)
    kind = fsspec.get_filesystem_class(request.param)
    kind.clear_instance_cache()
    yield RIGS[request.param](tmp_path)
    kind.clear_instance_cache()


@pytest.fixture
def store(rig):
    """A store without checkpoints."""
    return store_at(rig.location)
