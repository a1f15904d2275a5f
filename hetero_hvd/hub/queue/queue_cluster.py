"""The devices of the cluster as its nodes.yaml lists them, and a nodes.yaml for some of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from hetero_hvd.config import NodeConfig, NodesFile
from hetero_hvd.core.queue.devices import DevicePool, QueueDevice
from hetero_hvd.core.queue.queue_events import DeviceAdded, DeviceChanged, PoolsChanged
from hetero_hvd.errors import ConfigError, UserError
from hetero_hvd.messages.launch import EmulateSettings

PATHS_HERE = ("identity_file", "tls_file")
OF_ONE_SLOT = ("name", "slots", "devices", "lease", "pool", "device_kind")
OF_GUESTS = ("guest", "guest_idle_seconds", "guest_processors", "guest_file")
"""The hub itself hears of owners: the device leaves the file of a job then."""


class QueueCluster:
    """Follows the file. Each slot of a node is a device of the queue, `NODE:SLOT`.

    Args:
        path: Of nodes.yaml.
        environment: Of the hub.

    Attributes:
        listed: Names of the devices that the file has now.
        pools: Those with settings of their own.

    Raises:
        UserError: The file is wrong, or leaves a number of slots to the nodes' GPUs.
    """

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._file = NodesFile([path], environment, {})
        self._nodes: dict[str, tuple[NodeConfig, int]] = {}
        self._devices: dict[str, QueueDevice] = {}
        self._digests: dict[str, str] = {}
        self.listed: frozenset[str] = frozenset()
        self.pools: tuple[DevicePool, ...] = ()
        self._take()

    @property
    def devices(self) -> list[QueueDevice]:
        """All that the file has or had, in its order: a job may still have one that is gone."""
        return list(self._devices.values())

    @property
    def has_guests(self) -> bool:
        """Whether jobs are guests on one of the nodes."""
        return any(node.guest for node in self._file.current.nodes)

    def refresh(self) -> list[DeviceAdded | DeviceChanged | PoolsChanged] | ConfigError:
        """Read the file again: what has come and gone; or, once, what is wrong with it now.

        A device that is there as before is not told of, also if it was gone in between.
        """
        news = self._file.refresh()
        if news == "unchanged":
            return []
        if isinstance(news, ConfigError):
            return news
        before = dict(self._devices)
        try:
            self._take()
        except UserError as error:
            return ConfigError(error.lines)
        found: list[DeviceAdded | DeviceChanged | PoolsChanged] = [PoolsChanged(self.pools)]
        found += [
            DeviceAdded(device)
            for name, device in self._devices.items()
            if before.get(name) != device
        ]
        gone = {name: each for name, each in before.items() if name not in self._devices}
        self._devices |= gone
        return found + [DeviceChanged(name, "lost") for name in gone]

    def _take(self) -> None:
        nodes = {}
        for node in self._file.current.nodes:
            if node.declared_slots is None:
                raise UserError(
                    f"{self._file.current.where}: {node.name}: the queue has to know its devices: "
                    "give 'slots: N' or 'devices: [0, 1]'"
                )
            for slot in range(node.declared_slots):
                nodes[f"{node.name}:{slot}"] = node, slot
        names = Counter(_name(node, slot) for node, slot in nodes.values())
        for name, number in names.most_common(1):
            if number > 1:
                raise UserError(
                    f"{self._file.current.where}: jobs would have {number} nodes of the name "
                    f"{name}: give one of them another name"
                )
        self._nodes |= nodes
        self._digests.clear()
        self._devices = {
            name: QueueDevice(
                device=name,
                kind=node.device_kind or node.name,
                node=node.name,
                pool=node.pool,
                memory_bytes=node.memory_limit_bytes or 0,
                relative_speed=node.relative_speed or 1.0,
                is_guest=node.guest,
            )
            for name, (node, _) in nodes.items()
        }
        self.listed = frozenset(nodes)
        self.pools = tuple(
            DevicePool(pool=p.name, lends=p.lends, max_devices_per_user=p.max_devices_per_user)
            for p in self._file.current.pools
        )

    @property
    def device_of_entry(self) -> dict[str, str]:
        """Name of an entry in the nodes.yaml of a job to the device that it is."""
        return {_name(node, slot): name for name, (node, slot) in self._nodes.items()}

    @property
    def emulations(self) -> dict[str, tuple[int, str]]:
        """Node to its number of devices, and in which words its workers tell how it is emulated."""
        return {
            node.name: (node.declared_slots or 0, _emulation(node))
            for name, (node, _) in self._nodes.items()
            if name in self.listed
        }

    def entry_digest(self, device: str) -> str:
        """Of a device's entry in the file: it differs when that has changed."""
        if device not in self._digests:  # asked for all devices each second
            entry = repr(self._nodes[device][0])
            self._digests[device] = hashlib.sha256(entry.encode()).hexdigest()
        return self._digests[device]

    def by_kind(self, rates: Mapping[str, float]) -> dict[str, float]:
        """Mean rate of each kind, of a job that has told those of its nodes; all > 0."""
        known = self.device_of_entry
        found: dict[str, list[float]] = {}
        for name, rate in rates.items():
            if name in known and 0 < rate < math.inf:
                found.setdefault(self._devices[known[name]].kind, []).append(rate)
        return {kind: fmean(each) for kind, each in found.items()}

    def nodes_of(self, entries: Sequence[str], devices: Collection[str]) -> tuple[str, ...]:
        """The nodes of a job's workers; empty: it does not have exactly these devices now.

        Args:
            entries: Names in its nodes.yaml, one for each worker.
            devices: Those that it is to have.
        """
        known = self.device_of_entry
        found = {known.get(entry, "") for entry in entries}
        if found != set(devices) or len(entries) != len(found):
            return ()
        return tuple(sorted({self._devices[device].node for device in found}))

    def nodes_file(self, devices: Iterable[str], environment: Mapping[str, str]) -> bytes:
        """A nodes.yaml with these devices alone, an entry each, so that any of them can leave.

        Args:
            devices: Their names.
            environment: Variables of the job on all of them.
        """
        entries = [dict(self._entry(*self._nodes[name])) for name in devices]
        for entry in entries if environment else ():
            entry["env"] = entry.get("env", {}) | environment
        content: dict[str, Any] = {"nodes": entries}
        if (guard := self._file.current.guard) is not None:
            content["guard"] = asdict(guard.limits)  # whom to tell of it is no matter of a job
        return json.dumps(content, indent=1).encode() + b"\n"

    def _entry(self, node: NodeConfig, slot: int) -> Iterator[tuple[str, Any]]:
        yield "name", _name(node, slot)
        yield "slots", 1
        yield "lease", node.lease or f"{node.name}:{slot}"
        if node.devices is not None:
            yield "devices", [node.devices[slot]] if node.devices else []
        else:
            yield "devices", [slot]
        for name, value in _given(node).items():
            if name in PATHS_HERE:
                yield name, str(Path(value).expanduser().absolute())
            elif name not in OF_ONE_SLOT + OF_GUESTS:
                yield name, value


def _name(node: NodeConfig, slot: int) -> str:
    """Of a device as a node of a job."""
    return node.name if node.declared_slots == 1 else f"{node.name}-{slot}"


def _emulation(node: NodeConfig) -> str:
    if node.emulate is None:
        return ""
    return msgspec.convert(node.emulate, EmulateSettings, from_attributes=True).words


def _given(settings: object) -> dict[str, Any]:
    """What differs from the defaults, as a file has it."""
    assert is_dataclass(settings)  # noqa: S101 - each section of settings is one
    found = {field.name: getattr(settings, field.name) for field in fields(settings)}
    defaults = {field.name: field.default for field in fields(settings)}
    return {
        name: _given(value) if is_dataclass(value) else value
        for name, value in found.items()
        if value != defaults[name] and value is not None and value != {}
    }
