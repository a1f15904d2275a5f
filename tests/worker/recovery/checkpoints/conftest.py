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
    """Those of object stores that run, each since it was asked for.

    fsspec finds no server of another file's tests, and forgets this one with it: to make a client
    of S3 takes half a second.
    """
    with ExitStack() as stack:

        @cache
        def started(scheme):
            forget = fsspec.get_filesystem_class(scheme).clear_instance_cache
            forget()
            stack.callback(forget)
            return stack.enter_context(object_server(scheme, tmp_path_factory.mktemp(scheme)))

        yield started


@pytest.fixture(params=RIGS, ids=lambda scheme: scheme or "folder")
def rig(request, servers, tmp_path, monkeypatch):
    """One of the stores, which fsspec finds."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
        for name, value in servers(request.param).environment.items():
            monkeypatch.setenv(name, value)
    return RIGS[request.param](tmp_path)


@pytest.fixture
def store(rig):
    """A store without checkpoints."""
    return store_at(rig.location)
