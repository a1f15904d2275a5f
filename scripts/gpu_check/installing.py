"""Part `install`: a virtual environment over the Python that has torch, with Horovod for both."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

from gpu_check.packing import BUILD_TOOLS
from gpu_check.site import (
    PACKAGES,
    PART_SECONDS,
    PLACE,
    PYTHONS,
    VENV,
    Check,
    CheckError,
    Figure,
    Site,
    fail,
)

OWN = ("--ignore-installed", "--no-deps")
"""Installed here even where the Python around has some version: its programs come first on PATH."""

SITES = """
import os, sys
kinds = ("site-packages", "dist-packages")
print("".join(f"{path}\\n" for path in sys.path if os.path.basename(path) in kinds), end="")
"""
ASK = """
import json, sys, torch
known = getattr(torch, "accelerator", None)
kind = known.current_accelerator() if known and known.is_available() else None
name = torch.get_device_module(kind).get_device_name(0) if kind else None
print(json.dumps({"python": sys.version.split()[0], "torch": torch.__version__,
    "device": kind.type if kind else "cpu", "name": name}))
"""


def find_python(wanted: str) -> tuple[str, dict[str, Any]]:
    """An interpreter with torch that sees the device, and what it says of both.

    Args:
        wanted: `cuda`, `xpu` or `cpu`; `auto`: any accelerator.
    """
    seen, tried = [], set()
    names = [f"python{version}" for version in reversed(PYTHONS)]
    for name in filter(None, (os.environ.get("PYTHON"), "python3", *names)):
        path = shutil.which(name)
        place = path and (Path(path).parent, Path(path).resolve())  # python3 may be python3.11
        if path is None or place in tried:
            continue
        tried.add(place)
        done = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
        facts = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
        has_it = facts.get("device") == wanted or (wanted == "auto" and facts.get("name"))
        if facts and (has_it or wanted == "cpu"):
            return path, facts | ({"device": "cpu"} if wanted == "cpu" else {})
        seen.append(f"{path}: {'torch sees no such device' if facts else 'no torch'}")
    what, otherwise = " and a GPU", ", or rehearse without: --device cpu"
    if wanted == "cpu":
        what = otherwise = ""
    return fail(
        f"no Python with torch{what}: {'; '.join(seen) or 'no python3 at all'}; name one with "
        f"PYTHON={otherwise}"
    )


def environment(site: Site) -> Figure:
    """Make the virtual environment, and put in what was packed but for Horovod and hetero_hvd."""
    if not any(PACKAGES.glob("horovod-*.tar.gz")):
        raise CheckError(
            f"{PACKAGES} is empty: scripts/gpu-check --pack VERSION, then copy it here"
        )
    log = PLACE / "install.log"
    site.python = make_environment(site, VENV, log)
    site.run([*pip(site), *OWN, *BUILD_TOOLS], log=log, **offline())
    return Figure(len(list(PACKAGES.iterdir())), "packages", {"python": site.python})


def make_environment(site: Site, place: Path, log: Path) -> str:
    """Make a virtual environment with all that the site's Python has; gives its interpreter.

    That Python may be one of a virtual environment too, and so may the one before: a new
    environment has what the system has, and nothing of theirs, such as torch, by itself.
    """
    parents = site.run([site.python, "-c", SITES], log=log)
    make = [site.python, "-m", "venv", "--clear", "--system-site-packages", str(place)]
    site.run(make, log=log, seconds=60)
    (folder,) = place.glob("lib/python3*/site-packages")
    (folder / "parent.pth").write_text(parents)
    return str(place / "bin/python")


def pip(site: Site) -> list[str]:
    """How to install something in the virtual environment."""
    return [site.python, "-m", "pip", "install", "--no-build-isolation"]


def offline() -> dict[str, str]:
    """Let pip look in the folder only."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(PACKAGES)}


def horovod(site: Site) -> Figure:
    """Take a wheel that was built for this torch, else build one; install it, and hetero_hvd."""
    log = PLACE / "horovod.log"
    version = site.run(
        [site.python, "-c", "import torch; print(torch.__version__)"], log=log
    ).split()[-1]
    site.run([*pip(site), "."], log=PLACE / "hetero_hvd.log", **offline())
    for wheel in sorted(PACKAGES.glob("horovod-*.whl")):
        if is_built_for(wheel, version):
            site.run([*pip(site), "--no-deps", str(wheel)], log=log, expected_code=None)
            if imports(site):
                return Figure(0.0, "s to build", {"wheel": wheel.name, "torch": version})
    began = time.monotonic()
    build = [site.python, "scripts/horovod/build_wheel.py"]
    printed = site.run(build, log=log, seconds=PART_SECONDS, **offline())
    wheel = Path(printed.strip().splitlines()[-1])
    seconds = time.monotonic() - began
    site.run([*pip(site), "--no-deps", "--force-reinstall", str(wheel)], log=log)
    if not imports(site):
        raise CheckError("Horovod was built, but cannot be imported: see .gpu-check/import.log")
    return Figure(round(seconds, 1), "s to build", {"wheel": wheel.name, "torch": version})


def built_for(wheel: Path) -> str:
    """The torch that a wheel says it was built for; empty: it does not say."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith("NOTICE.hetero_hvd"):
                found = re.search(r"built for torch (\S+)", archive.read(name).decode())
                return found[1] if found else ""
    return ""


def is_built_for(wheel: Path, version: str) -> bool:
    """Whether a wheel was built for a release of torch, for whatever device that is."""
    return built_for(wheel).partition("+")[0] == version.partition("+")[0]


def imports(site: Site) -> bool:
    """Whether Horovod can be used."""
    code = "import horovod.torch as hvd; assert hvd.gloo_built(); print('it can')"
    log = PLACE / "import.log"
    return site.run([site.python, "-c", code], log=log, expected_code=None).endswith("it can\n")


def doctor(site: Site) -> Figure:
    """What hetero-hvd itself says."""
    log = PLACE / "doctor.log"
    printed = site.run([site.python, "-m", "hetero_hvd", "doctor", "--json"], log=log)
    found = json.loads(printed[printed.index("{") :])
    if not found["can_train"]:
        raise CheckError("; ".join(problem["what"] for problem in found["problems"]))
    if site.has_card and not found["devices"]:
        raise CheckError("the doctor sees no device")
    problems = [problem["what"] for problem in found["problems"]]
    return Figure(len(problems), "notes", {"devices": found["devices"], "problems": problems})


CHECKS = {
    "environment": Check(environment, "a virtual environment from what was packed"),
    "horovod": Check(horovod, "Horovod for the torch that is here"),
    "doctor": Check(doctor, "hetero-hvd doctor: training can start"),
}
