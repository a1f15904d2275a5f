"""The fixture that makes hosts; skips where it cannot, and says why."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.kit.virtual_cluster import (
    VirtualCluster,
    missing_for_a_cluster,
    running_cluster,
)

BARE_PYTHON = "python{}.{}".format(*sys.version_info)


@pytest.fixture(scope="session")
def virtual_cluster(tmp_path_factory) -> Iterator[Callable[[dict[str, int]], VirtualCluster]]:
    """Call it with names and quotas in percent of a core: `virtual_cluster({"alpha": 100})`.

    The same hosts are made once and live until the last test is done.
    """
    if missing := missing_for_a_cluster():
        pytest.skip(missing)
    made: dict[tuple[tuple[str, int], ...], VirtualCluster] = {}
    with contextlib.ExitStack() as stack:

        def virtual_cluster(hosts: dict[str, int]) -> VirtualCluster:
            key = tuple(hosts.items())
            if key not in made:
                folder = tmp_path_factory.mktemp("cluster")
                made[key] = stack.enter_context(running_cluster(hosts, folder=folder))
            return made[key]

        yield virtual_cluster


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory) -> Iterator[VirtualCluster]:
    """Two machines with Python and sshd on which nobody has installed anything."""
    if missing := missing_for_a_cluster():
        pytest.skip(missing)
    if shutil.which(BARE_PYTHON, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"needs {BARE_PYTHON} of the system")
    folder = tmp_path_factory.mktemp("bare")
    with running_cluster({"gamma": 100, "delta": 100}, folder=folder, is_bare=True) as cluster:
        yield cluster
