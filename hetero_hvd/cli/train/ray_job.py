"""`hetero-hvd run --ray`: on the nodes of a Ray cluster."""

from __future__ import annotations

import argparse
import os
import sys

from hetero_hvd.cli.settings import flags_of
from hetero_hvd.config import NodeConfig, NodesFile
from hetero_hvd.driver.output.console import Console
from hetero_hvd.errors import MissingPackageError, UserError
from hetero_hvd.integrations.packages import installed
from hetero_hvd.ray_cluster.agents import RayAgents
from hetero_hvd.ray_cluster.placement import read_resources
from hetero_hvd.ray_cluster.reports import nodes_as_yaml

AUTO = "auto"
"""What Ray itself finds: by RAY_ADDRESS, or the cluster of this machine."""

NO_NODE = nodes_as_yaml((), "")
"""Takes the place of the nodes while only the settings are looked at."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    group = command.add_argument_group("on a Ray cluster, see docs/guide/ray.md")
    group.add_argument(
        "--ray",
        nargs="?",
        const=AUTO,
        metavar="ADDRESS",
        help="train on the nodes of a Ray cluster, those that come later included: of this "
        "machine's, or of the one at this address, as ray.init takes it; a file that -f names may "
        "hold settings, and more about these nodes",
    )
    group.add_argument(
        "--ray-resources",
        metavar="NAME=AMOUNT,...",
        help="what to take of each node, such as GPU=2,CPU=8, a worker for each GPU; nodes with "
        "less are left out (default: all its GPUs and a CPU for each; where there is no GPU, all "
        "its CPUs)",
    )


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together.

    Raises:
        UserError: It was given.
    """
    if arguments.ray_resources is not None and not arguments.ray:
        raise UserError("--ray-resources: has no effect without --ray; add that, or leave it out")
    if arguments.ray is not None and not arguments.ray.strip():
        raise UserError(
            f"--ray: found {arguments.ray!r}, must be an address as HEAD:6379; without one it is "
            "the cluster of this machine"
        )
    for flag in ("slurm", "slurm_agents"):
        if arguments.ray and getattr(arguments, flag):
            name = f"--{flag.replace('_', '-')}"
            raise UserError(f"--ray and {name}: either lends the nodes; leave one of them out")


class RayJob:
    """A job on a Ray cluster: it has nodes from `__enter__` to `__exit__`.

    Args:
        arguments: Of the command line.

    Attributes:
        stand_ins: Nodes here that are as those will be: all have the same files under the same
            paths. None where a file says more about nodes, as it may name other folders.

    Raises:
        UserError: Ray is not installed, or a setting is wrong.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        if installed("ray") is None:
            raise MissingPackageError(
                f"--ray needs Ray, not installed in {sys.prefix}: pip install 'hetero_hvd[ray]', "
                "in the version that the cluster has"
            )
        resources = read_resources(arguments.ray_resources or "")
        self._paths = tuple(arguments.nodes_files or ())
        self._flags = flags_of(arguments)
        known = NodesFile(self._paths, os.environ, self._flags, granted=lambda: NO_NODE)
        self.stand_ins = () if known.not_granted else (NodeConfig(name="every-node"),)
        job = known.current.job
        if job.tls_file is not None:
            raise UserError(
                "tls_file: found one, and the agents on a Ray cluster have a key of their own for "
                "each job; leave it out with --ray"
            )
        self._console = Console()
        self._agents = RayAgents(
            arguments.ray,
            resources,
            say=self._console.say,
            timeout_seconds=job.elastic_timeout_seconds,
        )

    def start(self) -> None:
        """Have agents placed, on one node at least."""
        self._agents.start()

    def close(self) -> None:
        """End them."""
        self._agents.close()
        self._console.close()

    @property
    def nodes_file(self) -> NodesFile:
        """Its nodes, with the settings of the job; followed while it runs."""
        granted = self._agents.granted
        return NodesFile(self._paths, os.environ, self._flags, granted=granted)
