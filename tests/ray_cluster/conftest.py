"""A package `ray` that answers as it is told, in the place of Ray's own."""

import json
import os
from contextlib import contextmanager

import pytest

RAY = """
import json, os, threading
from concurrent.futures import ThreadPoolExecutor, wait as wait_for
from pathlib import Path
from types import SimpleNamespace

from ray import exceptions, util

HERE = Path(__file__).parent
nodes = lambda: json.loads((HERE / "nodes.json").read_text())
shutdown = lambda: os._exit(0)  # real actors are other processes
get_runtime_context = lambda: SimpleNamespace(runtime_env={})


def init(address, **_):
    if address == "nonsense":
        raise ValueError("Invalid address format: nonsense")
    if address == "nobody":
        raise ConnectionError("Could not find any running Ray instance.")
    if address == "silent":
        threading.Event().wait()
    if address == "dead":
        os.write(2, b"lost touch with GCS\\n")
        os._exit(1)


class Method:
    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def remote(self):
        return self.actor.pool.submit(self.call)

    def call(self):
        node = self.actor.node_id
        if (HERE / f"busy-{node}").exists():
            threading.Event().wait()
        if (HERE / f"refused-{node}").exists():
            raise exceptions.RayError((HERE / f"refused-{node}").read_text())
        if (HERE / f"away-{node}").exists():
            (HERE / f"away-{node}").unlink()
            raise exceptions.ActorUnavailableError("Socket closed")
        return getattr(self.actor.made.result(), self.name)()


class Actor:
    def __init__(self, cls, node_id, args, kwargs):
        self.pool, self.node_id = ThreadPoolExecutor(1), node_id
        self.made = self.pool.submit(cls, *args, **kwargs)

    def __getattr__(self, name):
        return Method(self, name)


class remote:
    def __init__(self, cls):
        self.cls = cls

    def options(self, **options):
        strategy = options.pop("scheduling_strategy")
        with (HERE / "options.jsonl").open("a") as file:
            file.write(json.dumps({"node": strategy.node_id} | options) + "\\n")
        return SimpleNamespace(
            remote=lambda *args, **kwargs: Actor(self.cls, strategy.node_id, args, kwargs)
        )


def wait(refs, timeout):
    done, left = wait_for(refs, timeout)
    return list(done), list(left)


get = lambda ref: ref.result()
"""
EXCEPTIONS = """
class RayError(Exception): pass
class ActorUnavailableError(RayError): pass
"""
STRATEGIES = """
class NodeAffinitySchedulingStrategy:
    def __init__(self, node_id, soft):
        assert soft is False
        self.node_id = node_id
"""


class ToldRay:
    """What that package is told.

    Args:
        folder: Of the package.
    """

    def __init__(self, folder):
        self.folder = folder

    def list(self, *nodes):
        """The cluster has these nodes from now on."""
        partial = self.folder / "nodes.partial"
        partial.write_text(json.dumps(nodes))
        partial.rename(self.folder / "nodes.json")

    def mark(self, kind, node_id, text=""):
        """What becomes of the next actors on a node: busy, refused or away."""
        (self.folder / f"{kind}-{node_id}").write_text(text)

    @property
    def options(self):
        """With which options the actors were asked for."""
        return list(map(json.loads, (self.folder / "options.jsonl").read_text().splitlines()))


def entry(node_id, name="", *, host="box", address="127.0.0.1", alive=True, **resources):
    """A node, as `ray.nodes()` has it."""
    return {
        "NodeID": node_id,
        "Alive": alive,
        "NodeManagerAddress": address,
        "NodeManagerHostname": host,
        "NodeName": name or address,
        "Resources": {"CPU": 2.0} | resources,
    }


@contextmanager
def told_ray_in(folder):
    """Stands first in the path of every process that is started meanwhile."""
    package = folder / "packages" / "ray"
    (package / "util").mkdir(parents=True)
    files = {"__init__": RAY, "exceptions": EXCEPTIONS}
    files |= {"util/__init__": "", "util/scheduling_strategies": STRATEGIES}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    told = ToldRay(package)
    told.list()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
        yield told


@pytest.fixture
def told_ray(tmp_path):
    """As long as the test."""
    with told_ray_in(tmp_path) as told:
        yield told
