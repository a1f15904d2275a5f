"""Build Horovod's wheel from its pinned source distribution, with our patches, and cache it.

Prints the path of the wheel on standard output and its progress on standard error. Run by
`scripts/setup` inside the virtual environment, where torch, setuptools and CMake are installed;
needs the standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple, NoReturn

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
CXX_STANDARD = "-std=gnu++20"  # what the headers of torch 2.13 need; Horovod asks for less
PATCHES = Path(__file__).resolve().with_name("patches")


class Patch(NamedTuple):
    """A patch of Horovod's source; its file says at its head why it is needed.

    Attributes:
        name: In the wheel's notice, and in what `hetero-hvd doctor` says.
        diff: In the unified format.
    """

    name: str
    diff: str

    @property
    def paths(self) -> list[str]:
        """Files of the source distribution that it changes."""
        return re.findall(r"^\+\+\+ b/(.+)$", self.diff, re.MULTILINE)


def fail(message: str) -> NoReturn:
    """Say in one line what is wrong, and end with exit code 2."""
    say(message)
    sys.exit(2)


def say(message: str) -> None:
    """Show progress."""
    print(f"scripts/setup: {message}", file=sys.stderr, flush=True)


def torch_version() -> str:
    """The installed torch: Horovod's wheel works with this one only."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        fail(f"torch is missing in {sys.prefix}: run scripts/setup, or install torch there first")


def build_flags(gpu: str) -> dict[str, str]:
    """Horovod's build switches: torch and Gloo only, and NCCL where it was asked for."""
    flags = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }
    return flags | ({"HOROVOD_GPU_OPERATIONS": "NCCL"} if gpu == "nccl" else {})


def read_patches() -> list[Patch]:
    """All patches, in the order of their numbers."""
    found = []
    for file in sorted(PATCHES.glob("*.patch")):
        _, mark, diff = file.read_text().partition("--- a/")
        found.append(Patch(file.stem.partition("-")[2], mark + diff))
    return found


def notice() -> str:
    """What the wheel says about itself; `hetero-hvd doctor` reads it.

    setuptools puts every NOTICE* of the source's root into the wheel's licenses. Horovod's licence
    asks for it too: whoever changes a file says so.
    """
    lines = [f"This is Horovod {VERSION} with corrections by hetero_hvd.", ""]
    lines += [f"built for torch {torch_version()}"]
    lines += [
        f"correction {patch.name}: {path}" for patch in read_patches() for path in patch.paths
    ]
    return "\n".join(lines) + "\n"


def cache_key(flags: dict[str, str]) -> str:
    """A short hash of everything that decides what the wheel contains."""
    python = (sys.version, sysconfig.get_platform())
    facts = (VERSION, SHA256, CXX_STANDARD, notice(), python, read_patches(), sorted(flags.items()))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def require_tools(gpu: str) -> None:
    """Fail early, in one line, when something is missing that the build needs."""
    compiler = os.environ.get("CXX", "g++")
    for tool, package in ((compiler, "g++"), ("make", "make"), ("cmake", "cmake")):
        if shutil.which(tool) is None:
            fail(f"{tool} is missing, needed to build Horovod: apt-get install {package}")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        fail(
            "Python.h is missing, needed to build Horovod: apt-get install "
            f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        )
    if gpu == "nccl" and shutil.which("nvcc") is None:
        fail("nvcc is missing, needed for --gpu nccl: install the CUDA toolkit, put it on PATH")


def fetch_source(folder: Path) -> Path:
    """Download the pinned source distribution and unpack it.

    pip checks the hash before it runs anything of the archive; an other archive never runs.
    """
    pinned = folder / "requirements.txt"
    pinned.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    download += ["--no-binary=:all:", "--no-build-isolation", "--dest", str(folder)]
    if subprocess.run([*download, "-r", pinned], check=False, stdout=sys.stderr).returncode:
        fail(f"the source of Horovod {VERSION} could not be had: pip's lines above say why")
    shutil.unpack_archive(folder / f"horovod-{VERSION}.tar.gz", folder)
    return folder / f"horovod-{VERSION}"


def apply_patch(source: Path, patch: Patch) -> None:
    """Change the files of the source as a patch says, at its line numbers and nowhere else.

    `patch` is not installed everywhere, and looks for another place when the lines do not fit.
    """
    for file in re.split(r"^--- a/", patch.diff, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^@@ -(\d+).*\n", file, flags=re.MULTILINE)
        path = head.splitlines()[0]
        target = source / path
        lines = target.read_text().splitlines(keepends=True) if target.is_file() else []
        offset = 0
        for start, hunk in zip(hunks[::2], hunks[1::2], strict=True):
            changes = hunk.splitlines(keepends=True)
            before = [line[1:] for line in changes if line[0] in " -"]
            after = [line[1:] for line in changes if line[0] in " +"]
            first = int(start) - 1 + offset
            if lines[first : first + len(before)] != before:
                fail(f"patch {patch.name} does not fit {path} at line {start}")
            lines[first : first + len(before)] = after
            offset += len(after) - len(before)
        target.write_text("".join(lines))


def correct(source: Path) -> None:
    """Apply every patch, or fail at the first that does not fit."""
    for patch in read_patches():
        apply_patch(source, patch)
    (source / "NOTICE.hetero_hvd").write_text(notice())


def build_environment(source: Path, flags: dict[str, str], key: str) -> dict[str, str]:
    """The environment of the build: nothing of Horovod's switches but our own."""
    compiler = source / "cxx"
    cxx = os.environ.get("CXX", "g++")
    compiler.write_text(f'#!/bin/sh\nexec {cxx} "$@" {CXX_STANDARD}\n')
    compiler.chmod(0o755)
    foreign = ("HOROVOD_WITH", "HOROVOD_GPU", "HOROVOD_CPU")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    environment.setdefault("MAKEFLAGS", f"-j{len(os.sched_getaffinity(0))}")
    return environment | flags | {"CXX": str(compiler), "HOROVOD_LOCAL_VERSION": f"hetero.{key}"}


def compile_wheel(source: Path, environment: dict[str, str]) -> Path:
    """Run the build with progress in percent; return the wheel."""
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps"]
    log, percent = [], -1
    with subprocess.Popen(
        [*command, "--wheel-dir", "dist", "."],
        cwd=source,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as build:
        for line in build.stdout or ():
            log.append(line)
            found = re.match(r"\s*\[\s*(\d+)%\]", line)
            if found and int(found[1]) >= percent + 5:
                percent = int(found[1])
                say(f"building Horovod {VERSION}: {percent} %")
    if build.returncode:
        sys.stderr.writelines(log[-40:])
        errors = [line.strip() for line in log if re.search(r"\berror\b.*:", line, re.IGNORECASE)]
        fail(f"Horovod did not build: {errors[0] if errors else 'the lines above say why'}")
    return next((source / "dist").glob("*.whl"))


def build(flags: dict[str, str], key: str, cached: Path) -> Path:
    """Build the wheel and put it into the cache, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="hetero-hvd-") as name:
        source = fetch_source(Path(name))
        correct(source)
        built = compile_wheel(source, build_environment(source, flags, key))
        cached.mkdir(parents=True, exist_ok=True)
        partial = cached / f".{os.getpid()}.partial"
        shutil.copyfile(built, partial)
        return partial.rename(cached / built.name)


def main() -> None:
    """Print the path of the cached wheel, building it first where there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", choices=["none", "nccl"], default="none", help="GPU operations")
    gpu = parser.parse_args().gpu
    flags = build_flags(gpu)
    key = cache_key(flags)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cached = root / "hetero_hvd" / "wheels" / key
    wheel = next(cached.glob("*.whl"), None)
    if wheel is None:
        require_tools(gpu)
        say(f"building Horovod {VERSION} (about 4 minutes on 2 cores; cached afterwards)")
        wheel = build(flags, key, cached)
    print(wheel)


if __name__ == "__main__":
    main()
