"""Each kind of place, started once for all tests of this folder, which one process runs."""

from contextlib import ExitStack
from functools import cache
from pathlib import Path

import fsspec
import pytest

from tests.data.source_rigs import PACKAGES, RIGS


def pytest_collection_modifyitems(items):
    """Those that need a place share it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "rigs" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("places of data"))


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """Gives a rig by its name, which is started when it is asked for first."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(RIGS[name](tmp_path_factory.mktemp(name))))


@pytest.fixture
def rigs(places, monkeypatch, tmp_path):
    """Gives a rig by its name; fsspec finds it, and forgets it afterwards."""
    opened = set()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def rig(name):
        if name in PACKAGES:
            pytest.importorskip(PACKAGES[name])
        found = places(name)
        for variable, value in found.environment.items():
            monkeypatch.setenv(variable, value)
        if found.environment and name not in opened:
            fsspec.get_filesystem_class(name).clear_instance_cache()
            opened.add(name)
        return found

    yield rig
    for name in opened:
        fsspec.get_filesystem_class(name).clear_instance_cache()
