"""What this process is told about its place in the job, through its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.messages import WorkerId

SECRETS = frozenset({"HETERO_HVD_KEY", "HETERO_HVD_TLS"})
_secrets: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """A worker's place.

    Attributes:
        worker: Its identity.
        host: Its name as a Horovod host.
        driver: `(address, port)` of our driver; None under `horovodrun` or alone.
        key: The job's key; empty without a driver.
        tls: Key and certificates for the channel, PEM; None: it is signed only.
        settings: This node's part of nodes.yaml that the worker needs.
    """

    worker: WorkerId
    host: str
    driver: tuple[str, int] | None
    key: bytes
    tls: bytes | None = None
    settings: Mapping[str, Any]

    @property
    def capacity(self) -> int:
        """Largest local batch, samples; -1 = not limited."""
        limit = self.settings.get("max_local_batch_size")
        return -1 if limit is None else int(limit)


def read_place(environment: Mapping[str, str] | None = None) -> LaunchSettings:
    """The place that the environment describes; alone, it is `localhost:0`.

    Once read, the job's secrets are taken out of this process's environment: what a script starts
    and what it logs has them no more.

    Args:
        environment: None: this process's own.

    Raises:
        JobError: A variable is malformed.
    """
    variables = _own_environment() if environment is None else environment
    driver = variables.get("HETERO_HVD_DRIVER")
    if driver is None:
        name = re.sub(r"[^A-Za-z0-9.-]", "-", variables.get("HOROVOD_HOSTNAME", "localhost"))
        slot = int(variables.get("HOROVOD_LOCAL_RANK", "0"))
        return LaunchSettings(
            worker=WorkerId(name, slot),
            host=name,
            driver=None,
            key=b"",
            settings=_settings(variables),
        )
    address, _, port = driver.rpartition(":")
    try:
        return LaunchSettings(
            worker=WorkerId.parse(variables["HETERO_HVD_WORKER"]),
            host=variables["HETERO_HVD_HOST"],
            driver=(address, int(port)),
            key=bytes.fromhex(variables["HETERO_HVD_KEY"]),
            tls=tls.encode() if (tls := variables.get("HETERO_HVD_TLS")) else None,
            settings=_settings(variables),
        )
    except (KeyError, ValueError) as error:
        raise JobError(
            f"HETERO_HVD_DRIVER is set, but the rest is not as expected: {error}"
        ) from error


def _own_environment() -> Mapping[str, str]:
    """This process's variables; the secrets among them are no longer there for its children."""
    for name in SECRETS & os.environ.keys():
        _secrets[name] = os.environ.pop(name)
    return {**os.environ, **_secrets}


def _settings(variables: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(variables.get("HETERO_HVD_NODE", "{}"), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise JobError(f"HETERO_HVD_NODE: {error}") from error
