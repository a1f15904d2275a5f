"""What is installed here, whether training can start, and what will not work and why."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hetero_hvd.probes import horovod_build as horovod_notice
from hetero_hvd.probes.machine.hardware import Hardware, probe_hardware
from hetero_hvd.probes.training_packages import how_to_get, setup_script

HOROVOD_VERSION = "0.28.1"
"""The release that hetero_hvd is made for: Horovod's last."""

OLDEST_TORCH = (2, 7)
"""The first with all of `torch.accelerator` and `torch.Stream` that is used; as in setup.py."""

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
"""What `python_requires` in setup.py says too."""

_PACKAGES = ("hetero_hvd", "horovod", "msgspec", "numpy", "torch", "websockets")

# In a process of its own: an import that crashes or hangs must not take the doctor with it.
# One line of JSON for each thing that worked.
_IMPORTS = """
import json
import torch
known = getattr(torch, "accelerator", None)  # older ones have none
kind = known.current_accelerator() if known and known.is_available() else None
number = known.device_count() if kind else 0
names = [torch.get_device_module(kind).get_device_name(index) for index in range(number)]
print(json.dumps({"devices": names}), flush=True)
import horovod.torch as hvd
names = ("gloo", "mpi", "nccl", "cuda", "rocm", "ccl", "ddl")
built = {name: bool(getattr(hvd, name + "_built")()) for name in names}
print(json.dumps({"operations": built}), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that will not work.

    Attributes:
        what: The fact.
        consequence: What follows from it.
        remedy: What to do.
        stops_training: Training cannot start because of it.
    """

    what: str
    consequence: str
    remedy: str
    stops_training: bool = False


@dataclass(frozen=True, kw_only=True)
class HorovodBuild:
    """The installed Horovod.

    Attributes:
        version: With its local part, `+hetero.<key>` for a wheel of `scripts/setup`.
        built_for_torch: Version of torch that the wheel was compiled against; None if unknown.
        corrections: Names of our corrections that are in it; empty for a stock Horovod.
        operations: Name of a backend to whether it was built; empty if it cannot be imported.
        import_error: Why `import horovod.torch` fails; None where it works.
    """

    version: str
    built_for_torch: str | None
    corrections: tuple[str, ...]
    operations: dict[str, bool]
    import_error: str | None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The doctor's findings.

    Attributes:
        versions: Package (and `python`) to installed version; None where it is missing.
        horovod: The installed Horovod; None where there is none.
        devices: Accelerators that the installed torch can use; none is a normal case.
        hardware: What this process may use of the machine.
        problems: What will not work, the worst first.
    """

    versions: dict[str, str | None]
    horovod: HorovodBuild | None
    devices: tuple[str, ...]
    hardware: Hardware
    problems: tuple[Problem, ...]

    @property
    def can_train(self) -> bool:
        """Whether training can start here."""
        return not any(problem.stops_training for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        """All findings as plain dicts, lists, numbers and strings, ready for JSON."""
        return asdict(self) | {"can_train": self.can_train}

    def text(self) -> str:
        """All findings for a person to read; no newline at the end."""
        return "\n".join(_lines(self))


def diagnose(*, timeout_seconds: float = 120.0) -> Diagnosis:
    """Examine this interpreter and this machine.

    Args:
        timeout_seconds: How long importing torch and Horovod may take, > 0; a cold disk needs
            many seconds.
    """
    versions = {"python": platform.python_version()} | {p: version_of(p) for p in _PACKAGES}
    facts, error = _import_all(timeout_seconds)
    horovod = None
    if versions["horovod"] is not None:
        horovod = _horovod_build(versions["horovod"], facts, error)
    hardware = probe_hardware()
    problems = [
        *_version_problems(versions),
        *_horovod_problems(horovod, versions["torch"]),
        *_machine_problems(hardware, horovod, facts),
    ]
    return Diagnosis(
        versions=versions,
        horovod=horovod,
        devices=tuple(facts.get("devices", ())),
        hardware=hardware,
        problems=tuple(sorted(problems, key=lambda problem: not problem.stops_training)),
    )


def version_of(package: str) -> str | None:
    """The installed version of a package; None where it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _import_all(timeout_seconds: float) -> tuple[dict[str, Any], str | None]:
    """Import torch, then Horovod; return what they say of themselves, and the first error."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORTS],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer in {timeout_seconds:g} s"
    facts: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):  # whatever the imports themselves print is not ours
            facts |= json.loads(line)
    if done.returncode == 0:
        return facts, None
    last = done.stderr.strip().rpartition("\n")[2]
    return facts, last or f"the interpreter ended with {done.returncode}"


def _horovod_build(version: str, facts: dict[str, Any], error: str | None) -> HorovodBuild:
    """Join what the distribution says, the notice in it, and what importing it gave."""
    return HorovodBuild(
        version=version,
        built_for_torch=horovod_notice.built_for_torch(),
        corrections=horovod_notice.corrections(),
        operations=facts.get("operations", {}),
        import_error=error,
    )


def _version_problems(versions: dict[str, str | None]) -> Iterator[Problem]:
    for package in ("torch", "horovod", "msgspec", "numpy", "websockets"):
        if versions[package] is None:
            yield Problem(
                what=f"{package} is not installed in {sys.prefix}",
                consequence="training cannot start",
                remedy=how_to_get(package),
                stops_training=True,
            )
    torch = versions["torch"]
    if torch is not None and tuple(map(int, torch.split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield Problem(
            what=f"torch is {torch}",
            consequence=f"training cannot start: it needs torch.accelerator as of {oldest}",
            remedy=f"install torch {oldest} or newer, then Horovod for it: scripts/setup",
            stops_training=True,
        )
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        yield Problem(
            what=f"Python is {versions['python']}",
            consequence=f"Horovod {HOROVOD_VERSION} is meant to work here on Python 3.11 to 3.14",
            remedy="use one of these",
        )


def _horovod_problems(horovod: HorovodBuild | None, torch: str | None) -> Iterator[Problem]:
    if horovod is None:
        return
    if torch is not None and horovod.built_for_torch not in (None, torch.partition("+")[0]):
        yield Problem(
            what=f"Horovod was built for torch {horovod.built_for_torch}, and torch is {torch}",
            consequence="it may fail to import, or crash",
            remedy=f"run {setup_script()} again: it builds Horovod for the installed torch",
        )
    if torch is not None and horovod.import_error is not None:
        yield Problem(
            what=f"import horovod.torch fails: {horovod.import_error}",
            consequence="training cannot start",
            remedy=f"build Horovod for the installed torch: {setup_script()}",
            stops_training=True,
        )
    if horovod.operations and not horovod.operations["gloo"]:
        yield Problem(
            what="Horovod was built without Gloo",
            consequence="training cannot start: elastic Horovod needs it",
            remedy=f"build Horovod with it: {setup_script()}",
            stops_training=True,
        )
    if not horovod.version.startswith(HOROVOD_VERSION):
        yield Problem(
            what=f"Horovod is {horovod.version}",
            consequence=f"untested: hetero_hvd is made for {HOROVOD_VERSION}",
            remedy=f"{setup_script()} installs that one",
        )
    elif not horovod.corrections:
        yield Problem(
            what=f"Horovod {horovod.version} has none of hetero_hvd's corrections",
            consequence="training works; after a lost worker the others wait for Gloo's timeout "
            "(30 s unless set), and a second loss meanwhile ends the job",
            remedy=f"{setup_script()} builds a corrected one",
        )


def _machine_problems(
    hardware: Hardware, horovod: HorovodBuild | None, facts: dict[str, Any]
) -> Iterator[Problem]:
    if not any(interface.reaches_others for interface in hardware.interfaces):
        yield Problem(
            what="no network interface but loopback is up",
            consequence="only nodes on this machine can train together",
            remedy="bring an interface up, or keep to nodes with launcher: local",
        )
    if hardware.ssh is None:
        yield Problem(
            what="there is no ssh client on PATH",
            consequence="nodes with launcher: ssh cannot be started from here",
            remedy="install one (apt-get install openssh-client)",
        )
    if hardware.gpus and facts.get("devices") == []:
        yield Problem(
            what=f"torch cannot use this machine's GPU ({hardware.gpus[0].name})",
            consequence="workers here compute on the CPU",
            remedy="install a torch that was built for CUDA, and check the driver",
        )
    if facts.get("devices") and horovod and horovod.operations.get("nccl") is False:
        yield Problem(
            what="Horovod was built without NCCL",
            consequence="gradients travel through the host's memory; correct, but slower",
            remedy="nothing; NCCL (scripts/setup --gpu nccl) is experimental: it was never run "
            "among two or more GPUs",
        )
    if horovod and horovod.operations.get("nccl"):
        yield Problem(
            what="Horovod was built with NCCL",
            consequence="NCCL among two or more GPUs is experimental: it was never run, and CPU "
            "workers cannot take part",
            remedy="scripts/setup --gpu none, unless you want to try it",
        )


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The text of a diagnosis, line by line."""
    hardware, horovod = diagnosis.hardware, diagnosis.horovod
    for package, version in diagnosis.versions.items():
        yield f"{package:<12}{version or 'missing'}"
    if horovod is not None:
        built = [name for name, there in horovod.operations.items() if there]
        yield f"{'  built with':<14}{', '.join(built) or 'unknown: it cannot be imported'}"
        yield f"{'  corrections':<14}{', '.join(horovod.corrections) or 'none'}"
    yield f"{'host':<12}{hardware.host}, {hardware.system}"
    yield f"{'cores':<12}{hardware.cores:g}"
    yield f"{'memory':<12}{hardware.memory_bytes / 2**30:.1f} GiB"
    yield f"{'devices':<12}{', '.join(diagnosis.devices) or 'CPU only'}"
    for interface in hardware.interfaces:
        state = "" if interface.is_up else " (down)"
        addresses = ", ".join(interface.addresses) or "no address"
        yield f"{'interface':<12}{interface.name}{state}: {addresses}"
    yield f"{'ssh':<12}{hardware.ssh or 'missing'}"
    for problem in diagnosis.problems:
        mark = "ERROR" if problem.stops_training else "note"
        yield f"{mark}: {problem.what}; {problem.consequence}. To do: {problem.remedy}."
    yield "Training can start." if diagnosis.can_train else "Training cannot start."
