"""What holds for every process that a test starts."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kit.checkout import PACKAGES

HERE = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (HERE / "without_compiler", *PACKAGES)))
os.environ["HETERO_HVD_RECORD"] = "0"  # thousands of trainings leave no folders
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes import the same files

settings.register_profile("untimed", deadline=None)  # a busy machine breaks no law
settings.load_profile("untimed")


def pytest_addoption(parser):
    """`scripts/test --all` runs what takes minutes, too."""
    parser.addoption("--all", action="store_true", help="also tests marked matrix")


def shares_a_fixture(item):
    """Whether a test uses what is made once for its module."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return any(fixture.scope == "module" for found in fixtures for fixture in found)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is marked `matrix`, unless it was asked for; what is shared is made once.

    Hosts are made in one process, and so is what the tests of a module share.
    """
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("cluster"))
        elif shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if not config.getoption("--all"):
        left = [item for item in items if item.get_closest_marker("matrix")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
