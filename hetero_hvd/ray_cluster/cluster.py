"""The door to Ray: its nodes, and actors that are bound to them."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

from hetero_hvd.errors import TryAgainError, UserError
from hetero_hvd.ray_cluster.node_actor import NodeActor
from hetero_hvd.ray_cluster.placement import (
    CPU,
    GPU,
    MEMORY,
    ClusterNode,
    Placement,
    nodes_in,
)

MAX_WORDS = 200


class PlacedAgent:
    """The agent of a node, from the wish for an actor to its end.

    Args:
        ray: The module.
        node: Where.
        taken: What the actor takes of it.
        key: The cluster key, as hexadecimal digits.

    Attributes:
        port: Where the agent listens; 0: it does not yet.
        directory: In which the actor works.
        why_ended: In words; empty: it may live.
    """

    def __init__(self, ray: ModuleType, node: ClusterNode, taken: Placement, key: str) -> None:
        self._ray = ray
        self.taken = taken
        self.port = 0
        self.directory = ""
        self.why_ended = ""
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        others = {n: a for n, a in taken.resources.items() if n not in (CPU, GPU, MEMORY)}
        options: dict[str, Any] = {
            "num_cpus": taken.resources.get(CPU, 0),
            "num_gpus": taken.resources.get(GPU, 0),
            "resources": others,
            "scheduling_strategy": strategy(node.node_id, soft=False),
            "max_restarts": 0,  # another agent has another port: it is placed anew
        }
        if memory := taken.resources.get(MEMORY):
            options["memory"] = int(memory)
        has_gpus = GPU in taken.resources
        make = ray.remote(NodeActor).options(**options)
        self._actor = make.remote(key, taken.num_threads, has_gpus=has_gpus)
        self._answer = self._actor.listening.remote()

    def look(self) -> None:
        """Take note of what has become of it."""
        if self.why_ended or not self._ray.wait([self._answer], timeout=0)[0]:
            return
        try:
            answer = self._ray.get(self._answer)
        except self._ray.exceptions.ActorUnavailableError:  # which may pass
            self._answer = self._next()
        except self._ray.exceptions.RayError as error:
            self.why_ended = _in_words(error)
        else:
            if self.port:
                self.why_ended = f"its agent {answer}"
            else:
                self.port, self.directory = answer
                self._answer = self._next()

    def close(self) -> None:
        """End it, whether it has begun or not."""
        self._ray.kill(self._actor)

    def _next(self) -> Any:  # noqa: ANN401 - Ray's ObjectRef
        return self._actor.ended.remote() if self.port else self._actor.listening.remote()


class RayCluster:
    """The cluster, for this process and as long as it lives: Ray then ends its actors.

    Args:
        address: As `ray.init` takes it.

    Raises:
        UserError: It is not to be used so.
        TryAgainError: It is not there, or does not answer.
        ImportError: Ray is not installed.
    """

    def __init__(self, address: str) -> None:
        import ray  # noqa: PLC0415 - not among the requirements of the package
        import ray.util.scheduling_strategies  # noqa: PLC0415 - as above

        self._ray = ray
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except OSError as error:  # Ray's ConnectionError is one
            raise TryAgainError(f"--ray {address}: {_in_words(error)}") from error
        except (ValueError, ImportError, RuntimeError) as error:  # of many versions
            raise UserError(f"--ray {address}: {_in_words(error)}") from error
        runtime_environment = ray.get_runtime_context().runtime_env
        self._nodes: list[ClusterNode] = []
        self.has_working_dir = bool(runtime_environment.get("working_dir"))

    def nodes(self) -> list[ClusterNode]:
        """Those that live, as far as Ray knows: a lost one is listed for another 15 s.

        Where Ray does not answer they are those of the last time: an agent does not need it.
        """
        with suppress(self._ray.exceptions.RayError, OSError):
            self._nodes = nodes_in(self._ray.nodes())
        return self._nodes

    def place(self, node: ClusterNode, taken: Placement, key: str) -> PlacedAgent:
        """Have an agent on a node, as soon as Ray can lend that."""
        return PlacedAgent(self._ray, node, taken, key)

    def close(self) -> None:
        """Leave; all actors end."""
        self._ray.shutdown()


def _in_words(error: BaseException) -> str:
    """The line of an error of Ray's that says what has happened: of a traceback the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_traceback = any("ray::" in line or "Traceback" in line for line in lines)
    return (lines or [type(error).__name__])[-1 if is_traceback else 0][:MAX_WORDS]
