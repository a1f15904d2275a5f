"""What holds for every process that a test starts."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kit.checkout import PACKAGES

HERE = Path(__file__).parent
SLURM = "slurm"
"""The fixture of a cluster that is made once."""

os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (HERE / "without_compiler", *PACKAGES)))
LEASES = tempfile.mkdtemp(prefix="hetero_hvd-leases-")
os.environ["HETERO_HVD_LEASES_FOLDER"] = LEASES  # tests beside each other have equal nodes
os.environ["HETERO_HVD_RECORD"] = "0"  # thousands of trainings leave no folders
os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other on busy processors spin
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes import the same files

settings.register_profile("untimed", deadline=None)  # a busy machine breaks no law
settings.load_profile("untimed")


def pytest_addoption(parser):
    """`scripts/test --all` runs what takes minutes, too."""
    parser.addoption("--all", action="store_true", help="also tests marked matrix")
    parser.addoption("--pictures", metavar="FOLDER", help="where tests of pages leave pictures")


def group_of(item):
    """What of a test has to be made in one process, if any."""
    fixtures = item._fixtureinfo.name2fixturedefs
    if item.get_closest_marker("cluster"):
        return "cluster"
    if SLURM in fixtures:
        return SLURM
    if any(fixture.scope == "module" for found in fixtures.values() for fixture in found):
        return item.nodeid.partition("::")[0]
    return None


def pytest_unconfigure():
    """Leave no folder behind."""
    shutil.rmtree(LEASES, ignore_errors=True)


def pytest_collection_finish():
    """Thousands of tests are there until the end: the collector need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is marked `matrix`, unless it was asked for; what is shared is made once.

    Hosts are made in one process, so is a Slurm, and so is what the tests of a module share.
    """
    for item in items:
        if (group := group_of(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    if not config.getoption("--all"):
        left = [item for item in items if item.get_closest_marker("matrix")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
