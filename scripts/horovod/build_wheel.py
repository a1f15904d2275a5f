"""Build Horovod's wheel from its pinned source distribution, with our patches, and cache it.

Prints the path of the wheel on standard output and its progress on standard error. Run by
`scripts/setup` inside the virtual environment, where torch and setuptools are installed, and
CMake where it builds; needs the standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
CXX_FLAGS = "-std=gnu++20 -g0"
"""The standard that the headers of torch 2.13 need, as Horovod asks for less; and nothing for
debuggers, which would be nine tenths of the wheel."""
FILES_AT_ONCE = 4
"""Source files in one run of the compiler: they share the headers that take most of its time. With
more, two files of Gloo meet whose names clash."""

OF_PIP = "error: subprocess-exited-with-error"
"""With this line pip begins what it says itself where a build has failed."""

TOOLKIT = Path("/usr/local/cuda")
"""Where NVIDIA's packages put it."""

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
    """The installed torch: Horovod's wheel works with this one only, for whatever device it is."""
    try:
        return importlib.metadata.version("torch").partition("+")[0]
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


def label(flags: dict[str, str]) -> str:
    """The local part of the wheel's version: equal where workers can train together."""
    facts = (VERSION, SHA256, read_patches(), sorted(flags.items()))
    corrected = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
    return f"hetero.torch{torch_version()}.{corrected}"


def cache_key(flags: dict[str, str]) -> str:
    """A short hash of everything that decides what the wheel contains."""
    facts = (label(flags), CXX_FLAGS, notice(), sys.version, sysconfig.get_platform())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def compiler() -> list[str]:
    """The C++ compiler with its arguments: $CXX may be `ccache g++`."""
    given = os.environ.get("CXX", "")
    if shutil.which(given):
        return [given]
    try:
        return shlex.split(given) or ["g++"]
    except ValueError as error:
        fail(f"CXX={given}: {error}; must be a compiler and its arguments, as for a shell")


def require_tools(gpu: str) -> None:
    """Fail early, in one line, when something is missing that the build needs."""
    for tool, package in ((compiler()[0], "g++"), ("make", "make"), ("cmake", "cmake")):
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


def write_program(path: Path, *lines: str) -> str:
    """Make a program of the shell's lines; gives its path."""
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return str(path)


def build_environment(
    source: Path, flags: dict[str, str], files_at_once: int = FILES_AT_ONCE
) -> dict[str, str]:
    """The environment of the build: nothing of Horovod's switches but our own."""
    foreign = ("HOROVOD_WITH", "HOROVOD_GPU", "HOROVOD_CPU")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    environment.setdefault("MAKEFLAGS", f"-j{len(os.sched_getaffinity(0))}")
    cxx = write_program(source / "cxx", f'exec {shlex.join(compiler())} "$@" {CXX_FLAGS}')
    unity = f"-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE={files_at_once}"
    cmake = write_program(
        source / "run_cmake",
        'case $1 in --build) exec cmake "$@" ;; esac',
        f'exec cmake "$@" {unity if files_at_once > 1 else ""}',
    )
    ours = {"CXX": cxx, "HOROVOD_CMAKE": cmake, "HOROVOD_LOCAL_VERSION": label(flags)}
    if "HOROVOD_GPU_OPERATIONS" in flags:
        prepare_cuda(source, environment)
    return environment | flags | ours | {"HOROVOD_BUILT_FOR_TORCH": torch_version()}


def prepare_cuda(source: Path, environment: dict[str, str]) -> None:
    """Tell of the toolkit, of NCCL, and of the compiler as it is, unless that is told already.

    nvcc takes its own standard of C++ only. torch takes the folder above nvcc for the toolkit, also
    where a program elsewhere runs it. NCCL that has come with torch has no name to link by.
    """
    host = write_program(source / "host_cxx", f'exec {shlex.join(compiler())} "$@"')
    environment.setdefault("CUDAHOSTCXX", host)
    if (TOOLKIT / "bin" / "nvcc").is_file():
        environment.setdefault("CUDA_HOME", str(TOOLKIT))
        environment.setdefault("CUDACXX", str(TOOLKIT / "bin" / "nvcc"))
    found = importlib.util.find_spec("nvidia")
    for parent in found.submodule_search_locations or () if found else ():
        library = Path(parent, "nccl", "lib", "libnccl.so.2")
        if library.is_file():
            home = source / "nccl"
            (home / "lib").mkdir(parents=True, exist_ok=True)
            for link, target in (
                (home / "include", library.parents[1] / "include"),
                (home / "lib" / "libnccl.so", library),
            ):
                link.unlink(missing_ok=True)
                link.symlink_to(target)
            environment.setdefault("HOROVOD_NCCL_HOME", str(home))


def compile_wheel(source: Path, environment: dict[str, str]) -> Path | str:
    """Run the build with progress in percent; give the wheel, or what the compiler says."""
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
        of_build = list(itertools.takewhile(lambda line: OF_PIP not in line, log))
        said = [line.strip() for line in of_build if line.strip()]
        follows = zip(said, [*said[1:], ""], strict=True)
        errors = [
            f"{line} {after}" if line.endswith("(message):") else line
            for line, after in follows
            if re.search(r"\berror\b.*:", line, re.IGNORECASE)
        ]
        full = [line for line in said if "No space left on device" in line]
        return (full or errors or said[-1:] or ["the lines above say why"])[0]
    return next((source / "dist").glob("*.whl"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While nobody else builds in the folder; waits for whoever does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another set-up that builds the same Horovod")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(flags: dict[str, str], cached: Path) -> Path:
    """Build the wheel and put it into the cache, whole or not at all.

    The folder of a build that was interrupted is left, and the next one goes on there. What does
    not build several files at once is built once more from its beginning, file by file.
    """
    folder = cached / "build"
    is_prepared = folder / "prepared"
    found: Path | str = ""
    for files_at_once in (FILES_AT_ONCE, 1):
        source = folder / f"horovod-{VERSION}"
        if is_prepared.exists():
            say("going on with a build that was interrupted")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            correct(fetch_source(folder))
            is_prepared.touch()
        found = compile_wheel(source, build_environment(source, flags, files_at_once))
        if isinstance(found, Path):
            wheel = found.rename(cached / found.name)
            shutil.rmtree(folder)
            return wheel
        is_prepared.unlink()
        if files_at_once > 1:
            say(f"that did not build ({found}); once more, file by file")
    fail(f"Horovod did not build: {found}")


def timed_build(flags: dict[str, str], cached: Path) -> Path:
    """Build, and say how long it has taken."""
    say(f"building Horovod {VERSION} (about a minute on 2 cores; cached afterwards)")
    start = time.monotonic()
    wheel = build(flags, cached)
    say(f"built Horovod {VERSION} in {time.monotonic() - start:.0f} s")
    return wheel


def main() -> None:
    """Print the path of the cached wheel, building it first where there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", choices=["none", "nccl"], default="none", help="GPU operations")
    parser.add_argument("--cached", action="store_true", help="where there is none: exit code 3")
    given = parser.parse_args()
    gpu = given.gpu
    flags = build_flags(gpu)
    key = cache_key(flags)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    cached = root / "hetero_hvd" / "wheels" / key
    wheel = next(cached.glob("*.whl"), None)
    if wheel is None and given.cached:
        sys.exit(3)
    if wheel is None:
        require_tools(gpu)
        if odd := re.search(r"[^\w./@%+,=-]", str(cached)):
            fail(
                f"{cached}: Horovod does not build in a path with {odd[0]!r}: name another folder "
                "as XDG_CACHE_HOME"
            )
        try:
            with locked(cached):
                wheel = next(cached.glob("*.whl"), None) or timed_build(flags, cached)
        except OSError as error:
            fail(
                f"{cached}: {error}; that must be a folder to write in with 500 MB of room: see to "
                "it, or name another one as XDG_CACHE_HOME"
            )
    print(wheel)


if __name__ == "__main__":
    main()
