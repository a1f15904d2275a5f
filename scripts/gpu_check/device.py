"""Part `device`: what hetero_hvd's door to accelerators says, beside what the device does."""

from __future__ import annotations

import csv
import json
import shutil
from typing import Any

from gpu_check.site import PLACE, SCRIPTS, Check, Figure, Site, Skipped, at_least, at_most

ON_DEVICE = SCRIPTS / "gpu_check" / "on_device.py"


def asked(site: Site, name: str) -> dict[str, Any]:
    """What a process on the card finds."""
    printed = site.run([site.python, str(ON_DEVICE), name], log=PLACE / f"{name}.log", seconds=120)
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return found


def events(site: Site) -> Figure:
    """A phase's time by events, beside the wall's around a synchronised block."""
    found = asked(site, "events")
    ratio = found["event_seconds"] / found["wall_seconds"]
    at_least(ratio, 0.95, "time by events / wall time")
    at_most(ratio, 1.05, "time by events / wall time")
    at_most(found["launch_seconds"], 0.5 * found["wall_seconds"], "seconds that the host waited")
    return Figure(ratio, "events / wall", found)


def copies(site: Site) -> Figure:
    """A copy to the host holds what the device computes later, and does not stop it."""
    found = asked(site, "copies")
    at_most(found["num_wrong"], 0, "wrong values after the event")
    at_most(found["num_early"], 0, "events that were passed before the device was there")
    return Figure(found["bytes_per_second"] / 1e9, "GB/s to the host", found)


def memory(site: Site) -> Figure:
    """The meter sees a tensor of known size come and go."""
    found = asked(site, "memory")
    at_least(found["added_bytes"], found["tensor_bytes"], "bytes that the meter has seen")
    at_most(found["added_bytes"], 1.1 * found["tensor_bytes"], "bytes that the meter has seen")
    at_most(found["kept_bytes"], 0.1 * found["tensor_bytes"], "bytes left after it was freed")
    return Figure(found["added_bytes"] / found["tensor_bytes"], "seen / size", found)


def nvml(site: Site) -> Figure:
    """Name, UUID, memory and power limit by NVML, beside nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        raise Skipped("no nvidia-smi on PATH")
    fields = "uuid,name,memory.total,power.limit"
    log = PLACE / "nvidia-smi.log"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    theirs = list(csv.reader(site.run(command, log=log).splitlines(), skipinitialspace=True))
    code = "from hetero_hvd.probes.gpu.nvml import survey; import dataclasses, json"
    code += "; print(json.dumps(dataclasses.asdict(survey())))"
    printed = site.run([site.python, "-c", code], log=PLACE / "nvml.log")
    ours = {gpu["uuid"]: gpu for gpu in json.loads(printed.splitlines()[-1])["gpus"]}
    wrong = [row for row in theirs if not agree(ours.get(row[0]), row)]
    at_most(len(wrong), 0, f"GPUs that differ from nvidia-smi: {wrong}")
    at_least(len(theirs), 1, "GPUs that nvidia-smi sees")
    return Figure(float(len(theirs)), "GPUs alike", {"gpus": sorted(ours)})


def agree(ours: dict[str, Any] | None, theirs: list[str]) -> bool:
    """Whether a GPU is the same in both; nvidia-smi gives MiB and watts, or [N/A]."""
    if ours is None or ours["name"] != theirs[1]:
        return False
    if abs(ours["memory_bytes"] / 2**20 - float(theirs[2])) > 0.01 * float(theirs[2]):
        return False
    is_told = theirs[3].replace(".", "").isdigit()
    watts = ours["power_limit_watts"]
    return not is_told or watts is None or abs(watts - float(theirs[3])) < 1.0


CHECKS = {
    "events": Check(events, "times by events are wall time", needs_card=True),
    "copies": Check(copies, "copies to the host wait for the device", needs_card=True),
    "memory": Check(memory, "the memory meter sees what is allocated", needs_card=True),
    "nvml": Check(nvml, "NVML says what nvidia-smi says", needs_card=True),
}
