"""What a machine without a network needs beside Python and torch, gathered where there is one."""

from __future__ import annotations

import re
import subprocess
import sys

from gpu_check.site import CHECKOUT, PACKAGES, PLACE, SCRIPTS, fail

BUILD_TOOLS = ("cmake<4", "setuptools", "wheel", "pip")
FOR_HOROVOD = ("cloudpickle", "packaging")
BESIDE_TORCH = ("numpy",)
"""Comes with torch nearly everywhere, and is as large as all else together."""

PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")
MAX_BYTES = 64 * 2**20


def pack(versions: list[str]) -> None:
    """Download Horovod's source and wheels for these versions of Python; say how much that is."""
    PACKAGES.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(SCRIPTS / "horovod"))
    from build_wheel import SHA256, VERSION  # noqa: PLC0415 - needed here only

    pinned = PLACE / "horovod.txt"
    pinned.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(PACKAGES)]
    pip += ["--disable-pip-version-check"]
    source = ["--no-deps", "--no-binary=:all:", "-r", str(pinned)]
    download([*pip, *source])
    needed = [*BUILD_TOOLS, *FOR_HOROVOD, *requirements()]
    for version in versions:
        wheels = [*pip, "--only-binary=:all:", "--python-version", version]
        wheels += [word for platform in PLATFORMS for word in ("--platform", platform)]
        wheels += ["--constraint", str(SCRIPTS / "constraints.txt")]
        download([*wheels, *needed])
    files = list(PACKAGES.iterdir())
    size = sum(file.stat().st_size for file in files)
    print(f"{PACKAGES}: {len(files)} files, {size / 2**20:.0f} MiB, for {', '.join(versions)}")
    if size > MAX_BYTES:
        fail(f"that is more than {MAX_BYTES // 2**20} MiB: remove {PACKAGES} and pack fewer")


def download(command: list[str]) -> None:
    """Let pip fetch something."""
    if subprocess.run(command, check=False).returncode:
        fail("a download failed: pip's lines above say why")


def requirements() -> list[str]:
    """What setup.py says that hetero_hvd needs, but for what comes with torch."""
    text = (CHECKOUT / "setup.py").read_text()
    listed = text.partition("install_requires=[")[2].partition("]")[0]
    direct = [word.strip().strip('",') for word in listed.splitlines() if word.strip()]
    return [name for name in map(name_of, direct) if name not in BESIDE_TORCH]


def name_of(requirement: str) -> str:
    """The distribution that a requirement names, as package indexes write it."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()
