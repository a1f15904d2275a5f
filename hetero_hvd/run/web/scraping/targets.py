"""Where Prometheus finds a run: what it scrapes there, as http_sd and file_sd have it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from platform import node
from typing import Any

import msgspec

from hetero_hvd.config.value_types import is_one_address
from hetero_hvd.core.recording.runs import page_parts
from hetero_hvd.run.records.run_files import is_locked
from hetero_hvd.whole_file import write_whole

TARGETS = ".{}.targets.json"
"""Beside the folder of a run while it has a page: file_sd of Prometheus has a `*` only in the last
part of a path."""

READABLE = 0o644
"""Prometheus is another user; the file has an address and no secret."""

Target = dict[str, Any]


def run_name(run_id: str) -> str:
    """Of the run's folder: the same when the run is gone on with, which has an id of its own."""
    return run_id.rpartition("-")[0] or run_id


def run_target(url: str, run_id: str) -> Target:
    """The page of a run.

    Args:
        url: See `page_elsewhere`.
        run_id: See `RunStarted`.
    """
    return _target(url, run=run_name(run_id))


def own_target(url: str, run_id: str) -> Target:
    """The page of a run of this machine; see `run_target`."""
    return run_target(page_elsewhere(url, node()) or url, run_id)


def node_target(url: str, node: str) -> Target:
    """The exporter of a node.

    Args:
        url: Of it, `http[s]://ADDRESS:PORT`.
        node: Its name.
    """
    return _target(url, node=node)


def page_elsewhere(url: str, host: str) -> str | None:
    """The url of a page for other machines.

    To those an address such as `0.0.0.0` means themselves, to where they would send their token.

    Args:
        url: `http[s]://ADDRESS:PORT`, as its server listens.
        host: Name of the server's machine, which stands for all of its addresses.

    Returns:
        `http[s]://HOST:PORT`; None: it is no such url, or the name is none.
    """
    try:
        parts = page_parts(url)
        address = host if _stands_for_all(parts.hostname or "") else parts.netloc.rpartition(":")[0]
        told = f"{parts.scheme}://{address}:{parts.port}"
        page_parts(told)
    except ValueError:
        return None
    return told


def _stands_for_all(name: str) -> bool:
    try:
        return not is_one_address(ipaddress.ip_address(name))
    except ValueError:
        return False


def _target(url: str, **labels: str) -> Target:
    scheme, _, address = url.partition("://")
    return {"targets": [address], "labels": {**labels, "__scheme__": scheme}}


def service_discovery(status: Mapping[str, Any], own: Target) -> list[Target]:
    """What Prometheus should scrape of a run, for its http_sd.

    Args:
        status: As GET /status tells it; `node_exporters`, if there, maps a node's name to
            `http[s]://ADDRESS:PORT` of its exporter. Only nodes that have a worker now are listed.
        own: See `own_target`.
    """
    present = {worker.rpartition(":")[0] for worker in status["workers"]}
    exporters = sorted(status.get("node_exporters", {}).items())
    return [own, *(node_target(url, node) for node, url in exporters if node in present)]


class TargetFile:
    """Tells who looks into the folder above of this run, while it has a page.

    Nothing is told where that folder cannot be written.

    Args:
        folder: Of the run, which this process holds.
    """

    def __init__(self, folder: Path) -> None:
        own = folder.absolute()
        self._above = own.parent
        self._path = self._above / TARGETS.format(own.name)

    def write(self, targets: Sequence[Target]) -> None:
        """Tell; what those have left there whose drivers were killed goes."""
        with suppress(OSError):
            self._forget_killed()
        with suppress(OSError):
            write_whole(self._path, msgspec.json.encode(targets))
            self._path.chmod(READABLE)

    def _forget_killed(self) -> None:
        """Of this user: whether a run of another one goes on nobody else can tell."""
        begin, end = TARGETS.split("{}")
        for path in self._above.glob(TARGETS.format("*")):
            name = path.name.removeprefix(begin).removesuffix(end)
            is_own = path.lstat().st_uid == os.geteuid()
            if is_own and path != self._path and not is_locked(self._above / name):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Tell no more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
