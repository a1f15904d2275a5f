"""Checks on a real GPU, beside a CPU worker: equal gradients, out of memory, a killed worker.

Needs the standard library only, a Python with torch and a GPU, and what `--prepare` has gathered.
Run by `scripts/gpu-check`; works in `.gpu-check` of the checkout, which may be copied as a whole.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

CHECKOUT = Path(__file__).resolve().parents[1]
PLACE = CHECKOUT / ".gpu-check"
PACKAGES, VENV, FOUND = PLACE / "packages", PLACE / "venv", PLACE / "found.json"
JOB = CHECKOUT / "scripts" / "gpu_check_job.py"
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")
BUILD_TOOLS = ("cmake", "setuptools", "wheel", "pip")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")
FOR_HOROVOD = ("cloudpickle", "packaging")

PART_SECONDS, TOLERANCE = 480.0, 1e-9
"""Limit of one part; largest difference of a float64 parameter that sums in another order make."""

ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""So that host memory that was freed, or kept for threads, does not soften a limit on it."""

KILL_STEP = OOM_STEP = 4


class CheckError(Exception):
    """A check found what should not be; the text says what."""


def fail(message: str) -> NoReturn:
    """One line, exit code 2."""
    print(f"scripts/gpu-check: {message}", file=sys.stderr)
    sys.exit(2)


def run(command: list[str], *, log: Path, seconds: float, **environment: str) -> str:
    """Run a command to its end; what it printed, which the log has too.

    Raises:
        CheckError: It failed, or took too long.
    """
    with log.open("w") as file:
        try:
            code = subprocess.run(
                command,
                cwd=CHECKOUT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise CheckError(f"took more than {seconds:.0f} s: see {log}") from error
    printed = log.read_text(errors="replace")
    if code:
        raise CheckError(f"exit code {code}: {printed.strip().splitlines()[-1:]}; see {log}")
    return printed


def prepare(version: str) -> None:
    """Download what the parts need on a machine without a network, but for torch."""
    PACKAGES.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(CHECKOUT / "scripts" / "horovod"))
    from build_wheel import SHA256, VERSION  # noqa: PLC0415 - needed here only

    pinned = PLACE / "horovod.txt"
    pinned.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(PACKAGES)]
    source = [*pip, "--no-deps", "--no-binary=:all:", "--no-build-isolation", "-r", str(pinned)]
    wheels = [*pip, "--only-binary=:all:", "--python-version", version]
    wheels += [word for platform in PLATFORMS for word in ("--platform", platform)]
    wheels += ["--constraint", str(CHECKOUT / "scripts" / "constraints.txt")]
    for command in (source, [*wheels, *BUILD_TOOLS, *FOR_HOROVOD, *requirements()]):
        if subprocess.run(command, check=False).returncode:
            fail("a download failed: pip's lines above say why")
    print(f"{PACKAGES}: {len(list(PACKAGES.iterdir()))} files for Python {version}")


def requirements() -> list[str]:
    """What setup.py says that hetero_hvd needs."""
    text = (CHECKOUT / "setup.py").read_text()
    listed = text.partition("install_requires=[")[2].partition("]")[0]
    return [word.strip().strip('",') for word in listed.splitlines() if word.strip()]


def find_python(*, is_rehearsal: bool) -> tuple[str, dict[str, Any]]:
    """An interpreter with torch that sees a GPU, and what it says of both."""
    code = (
        "import json, sys, torch; gpu = torch.cuda.is_available(); print(json.dumps({"
        "'python': sys.version.split()[0], 'torch': torch.__version__, 'cuda': torch.version.cuda,"
        "'gpu': torch.cuda.get_device_name(0) if gpu else None}))"
    )
    seen, tried = [], set()
    for name in filter(None, (os.environ.get("PYTHON"), *PYTHONS)):
        path = shutil.which(name)
        place = path and (Path(path).parent, Path(path).resolve())  # python3 may be python3.11
        if path is None or place in tried:
            continue
        tried.add(place)
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        facts = json.loads(done.stdout) if done.returncode == 0 else {}
        if facts.get("gpu") or (facts and is_rehearsal):
            return path, facts
        seen.append(f"{path}: {'torch sees no GPU' if facts else 'no torch'}")
    fail(f"no Python with torch and a GPU: {'; '.join(seen) or 'no python3 at all'}")


def install(*, is_rehearsal: bool) -> dict[str, Any]:
    """A virtual environment over the Python that has torch, with Horovod built for both."""
    python, facts = find_python(is_rehearsal=is_rehearsal)
    if not is_rehearsal and not any(PACKAGES.glob("horovod-*.tar.gz")):
        fail("no packages: run scripts/gpu-check --prepare VERSION where there is a network, copy")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(PACKAGES), "PATH": path_of_venv()}
    pip = [str(VENV / "bin/python"), "-m", "pip", "install", "--no-build-isolation"]
    log, left = PLACE / "install.log", PART_SECONDS
    began = time.monotonic()
    run([python, "-m", "venv", "--clear", "--system-site-packages", str(VENV)], log=log, seconds=60)
    if not is_rehearsal:  # a rehearsal takes what is installed already
        run([*pip, *BUILD_TOOLS], log=log, seconds=left, **offline)
        printed = run(
            [str(VENV / "bin/python"), "scripts/horovod/build_wheel.py"],
            log=log,
            seconds=left,
            **offline,
        )
        run([*pip, printed.strip().splitlines()[-1], "."], log=log, seconds=left, **offline)
    return facts | {"build_seconds": round(time.monotonic() - began)}


def path_of_venv() -> str:
    """PATH with the virtual environment in front."""
    return f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"


def train(name: str, *, is_rehearsal: bool, **job: Any) -> dict[str, Any]:  # noqa: ANN401
    """Train on a GPU worker beside a CPU worker; what each of them left.

    Args:
        name: Of the folder.
        is_rehearsal: Both are CPU workers.
        job: See `gpu_check_job`; empty: one process on the CPU.
    """
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    devices = [] if is_rehearsal else [0]
    nodes = [
        {"name": "gpu", "slots": 1, "devices": devices, "env": ALLOCATOR},
        {"name": "cpu", "slots": 1, "devices": [], "env": ALLOCATOR},
    ]
    (folder / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    (folder / "job.json").write_text(json.dumps(job | {"is_rehearsal": is_rehearsal}))
    python = str(VENV / "bin/python") if VENV.is_dir() else sys.executable
    script = [str(JOB), str(folder)]
    command = [python, *script]
    environment = {"PATH": path_of_venv(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    if job:
        start = ["-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml"), "--no-remember"]
        command = [python, *start, "--output", str(folder / "out"), "--", *script]
    else:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    run(command, log=folder / "printed", seconds=PART_SECONDS / 2, **environment)
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("left-*.json")}


def compared(found: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """How far the workers' parameters are from those of one process.

    Raises:
        CheckError: Too far, or a worker is missing.
    """
    (alone,) = expected.values()
    errors = {
        name: max(abs(a - b) for a, b in zip(left["parameters"], alone["parameters"], strict=True))
        for name, left in found.items()
    }
    if not errors or max(errors.values()) > TOLERANCE:
        raise CheckError(f"parameters differ from those of one process: {errors}")
    return {"largest_difference": max(errors.values()), "workers": sorted(found)}


def gradients(*, is_rehearsal: bool) -> dict[str, Any]:
    """Unequal parts on a GPU and a CPU give the parameters of one process."""
    found = train("gradients", is_rehearsal=is_rehearsal, fault="none")
    devices = {name: left["device"] for name, left in found.items()}
    if sorted(found) != ["left-cpu:0", "left-gpu:0"]:
        raise CheckError(f"these workers came to the end: {sorted(found)}")
    if not is_rehearsal and not devices["left-gpu:0"].startswith("cuda"):
        raise CheckError(f"nothing ran on the GPU: {devices}")
    return compared(found, train("alone", is_rehearsal=is_rehearsal)) | {"devices": devices}


def oom(*, is_rehearsal: bool) -> dict[str, Any]:
    """The device's memory ends in a step: the step is finished in smaller pieces."""
    found = train("oom", is_rehearsal=is_rehearsal, fault="oom", step=OOM_STEP)
    left = found.get("left-gpu:0", {"calls": []})
    sizes = [size for step, size in left["calls"] if step == OOM_STEP]
    if not sizes or min(sizes) >= sizes[0]:
        raise CheckError(f"no smaller micro-batch was tried in step {OOM_STEP}: {sizes}")
    return compared(found, train("alone", is_rehearsal=is_rehearsal)) | {"micro_batches": sizes}


def kill(*, is_rehearsal: bool) -> dict[str, Any]:
    """The GPU's worker is killed: the other goes on, no sample is lost or taken twice."""
    found = train("kill", is_rehearsal=is_rehearsal, fault="kill", step=KILL_STEP)
    if not (PLACE / "kill" / "killed").exists():
        raise CheckError("the worker was never killed")
    return compared(found, train("alone", is_rehearsal=is_rehearsal))


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "install": install,
    "gradients": gradients,
    "oom": oom,
    "kill": kill,
}


def main() -> None:
    """Run the parts that were asked for; exit code 1 if one failed."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--prepare", metavar="VERSION", help="gather packages for that Python")
    parser.add_argument(
        "--rehearse", action="store_true", help="two CPU workers, with what is installed already"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        fail(f"unknown part {unknown[0]!r}: must be of {', '.join(PARTS)}")
    if arguments.prepare:
        prepare(arguments.prepare)
        return
    PLACE.mkdir(exist_ok=True)
    records = json.loads(FOUND.read_text()) if FOUND.is_file() else {}
    is_good = True
    for name in arguments.parts or list(PARTS):
        began = time.monotonic()
        try:
            record = {"passed": True} | PARTS[name](is_rehearsal=arguments.rehearse)
        except CheckError as error:
            record, is_good = {"passed": False, "error": str(error)}, False
        records[name] = record | {
            "seconds": round(time.monotonic() - began, 1),
            "rehearsal": arguments.rehearse,
        }
        partial = FOUND.with_suffix(".partial")
        partial.write_text(json.dumps(records, indent=2) + "\n")
        partial.replace(FOUND)
        print(f"{name}: {json.dumps(records[name])}", flush=True)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
