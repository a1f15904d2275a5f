"""Exactly the Horovod that we mean is built, once, or one line says why not."""

from __future__ import annotations

import errno
import importlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

CHECKOUT = Path(__file__).parents[1]
SETUP = CHECKOUT / "scripts" / "setup"


@pytest.fixture(scope="module")
def wheel():
    """The module `scripts/horovod/build_wheel.py`."""
    return importlib.import_module("build_wheel")


SOURCE = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"
DIFF = """--- a/first.cc
+++ b/first.cc
@@ -1,3 +1,4 @@
 one
-two
+TWO
+and more
 three
@@ -7,3 +8,2 @@ a function
 seven
-eight
 nine
--- a/folder/second.py
+++ b/folder/second.py
@@ -5,1 +5,2 @@
 five
+and a half
"""


@pytest.fixture
def source(wheel, tmp_path, monkeypatch):
    """A source tree and a patch that fits."""
    (tmp_path / "folder").mkdir()
    for name in ("first.cc", "folder/second.py"):
        (tmp_path / name).write_text(SOURCE)
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "0001-some-name.patch").write_text("Why it is needed.\n\n" + DIFF)
    monkeypatch.setattr(wheel, "PATCHES", patches)
    return tmp_path


def fails(capsys, call, *args):
    """The one line that a call ends with."""
    with pytest.raises(SystemExit) as caught:
        call(*args)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_every_patch_is_applied_and_named(wheel, source):
    """The source has the lines of all hunks, and a notice that names each patch and its files."""
    wheel.correct(source)
    first = "one\nTWO\nand more\nthree\nfour\nfive\nsix\nseven\nnine\n"
    assert (source / "first.cc").read_text() == first
    second = SOURCE.replace("five\n", "five\nand a half\n")
    assert (source / "folder/second.py").read_text() == second
    notice = (source / "NOTICE.hetero_hvd").read_text()
    for path in ("first.cc", "folder/second.py"):
        assert f"correction some-name: {path}\n" in notice


MISFITS = {
    "another line": (SOURCE.replace("seven", "7"), 7),
    "an added line": ("zero\n" + SOURCE, 1),
    "a missing line": (SOURCE.replace("four\n", ""), 7),
    "a shorter file": ("one\n", 1),
    "no file": (None, 1),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_patch_that_does_not_fit_is_refused(wheel, source, capsys, misfit):
    """At its line and nowhere else: which patch, which file, which line."""
    text, line = MISFITS[misfit]
    file = source / "first.cc"
    file.unlink() if text is None else file.write_text(text)
    said = fails(capsys, wheel.correct, source)
    assert said.endswith(f"patch some-name does not fit first.cc at line {line}")


def test_our_patches_are_few_small_and_explained(wheel):
    """What needs more belongs above Horovod: docs/decisions/0011."""
    patches, files = wheel.read_patches(), sorted(wheel.PATCHES.glob("*.patch"))
    assert len(patches) <= 22
    assert len({patch.name for patch in patches}) == len(patches)
    assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))
    for patch, file in zip(patches, files, strict=True):
        assert len(re.findall(r"^[+-](?!-- |\+\+ )", patch.diff, re.MULTILINE)) <= 60
        assert len(file.read_text().removesuffix(patch.diff).split()) >= 15
        assert patch.paths


@pytest.mark.parametrize("missing", ["g++", "make", "cmake"])
def test_a_missing_tool_is_one_line(wheel, tmp_path, monkeypatch, capsys, missing):
    """The line names what is missing, why it is needed, and the package to install."""
    for tool in {"g++", "make", "cmake"} - {missing}:
        (tmp_path / tool).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    line = fails(capsys, wheel.require_tools, "none")
    assert line.startswith(f"scripts/setup: {missing} is missing, needed to build Horovod")
    assert line.endswith(f"apt-get install {missing}")


def packages_of_setup(wheel, tmp_path, monkeypatch, capsys):
    """What the messages of scripts/setup say to install, but for cmake, which it gets from PyPI."""
    tools = ("g++", "make", "cmake")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(wheel.sysconfig, "get_path", lambda _name: str(tmp_path))
    found = re.findall(r"apt-get install (\S+?),?\s", SETUP.read_text())
    for number in range(len(tools) + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        for tool in tools[:number]:
            (folder / tool).symlink_to(sys.executable)
        monkeypatch.setenv("PATH", str(folder))
        found.append(fails(capsys, wheel.require_tools, "none").partition("apt-get install ")[2])
    own, named = "python{}.{}".format(*sys.version_info), "python3"
    return {package.replace(own, named) for package in found} - {"cmake"}


def packages_of_ci(folder):
    """What .ci/run installs where nothing is there yet."""
    (folder / "scripts").mkdir(parents=True)
    (folder / ".ci").mkdir()
    (folder / "bin").mkdir()
    (folder / ".ci" / "run").write_bytes((CHECKOUT / ".ci" / "run").read_bytes())
    programs = {
        "bin/id": "echo 0",
        "bin/apt-get": f'echo "$@" >>{folder}/installed',
        "bin/dirname": 'echo "${2%/*}"',
        "bin/python3.11": "exit 1",
        "scripts/test": "",
    }
    for name, code in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{code}\n")
        (folder / name).chmod(0o755)
    script = (folder / ".ci" / "run").read_text().replace("/usr/sbin:/sbin", "")
    environment = {"PATH": str(folder / "bin")}
    subprocess.run(
        ["/bin/sh", "-c", script, str(folder / ".ci" / "run")], env=environment, check=True
    )
    update, install = (folder / "installed").read_text().splitlines()
    assert update.startswith("update")
    return {word for word in install.split() if not word.startswith("-")} - {"install"}


def test_the_readme_names_every_package_that_is_needed(wheel, tmp_path, monkeypatch, capsys):
    """On a bare Debian its one line is enough for scripts/setup, and .ci/run installs it too."""
    of_ci = packages_of_ci(tmp_path / "ci")
    of_setup = packages_of_setup(wheel, tmp_path, monkeypatch, capsys)
    readme = (CHECKOUT / "README.md").read_text()
    (line,) = re.findall(r"^apt-get install (.*)$", readme, re.MULTILINE)
    assert set(line.split()) == of_setup
    assert of_setup < of_ci


def test_the_cache_key_changes_with_whatever_changes_the_wheel(wheel, monkeypatch):
    """Another build flag, patch or C++ standard is another wheel; the same is the same."""
    flags = wheel.build_flags("none")
    key = wheel.cache_key(flags)
    keys = {wheel.cache_key(wheel.build_flags("nccl"))}
    first, *others = wheel.read_patches()
    changed = first._replace(diff=first.diff.replace("+", "+ "))
    monkeypatch.setattr(wheel, "read_patches", lambda: [changed, *others])
    keys.add(wheel.cache_key(flags))
    monkeypatch.setattr(wheel, "CXX_FLAGS", "-std=gnu++23")
    keys.add(wheel.cache_key(flags))
    monkeypatch.undo()
    assert wheel.cache_key(flags) == key
    assert key not in keys
    assert len(keys) == 3


def test_the_build_sees_no_foreign_switches(wheel, tmp_path, monkeypatch):
    """What the user's environment says to Horovod's build does not get into a cached wheel."""
    monkeypatch.setenv("HOROVOD_WITH_MXNET", "1")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    environment = wheel.build_environment(tmp_path, wheel.build_flags("none"))
    assert "HOROVOD_WITH_MXNET" not in environment
    assert "HOROVOD_GPU_OPERATIONS" not in environment
    assert environment["HOROVOD_LOCAL_VERSION"].startswith("hetero.torch2.")


GIVEN = {
    "nothing": {},
    "all of it": {
        "CUDAHOSTCXX": "clang++",
        "CUDACXX": "nvcc",
        "CUDA_HOME": "/c",
        "HOROVOD_NCCL_HOME": "/n",
    },
}


@pytest.mark.parametrize("given", GIVEN)
def test_nccl_is_linked_as_it_has_come_with_torch(wheel, tmp_path, monkeypatch, given):
    """What the user says counts; nvcc has the compiler without our standard of C++."""
    for name in GIVEN["all of it"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in GIVEN[given].items():
        monkeypatch.setenv(name, value)
    nccl, source = tmp_path / "site/nvidia/nccl", tmp_path / "source"
    (nccl / "lib").mkdir(parents=True)
    (nccl / "include").mkdir()
    (nccl / "lib/libnccl.so.2").write_text("")
    source.mkdir()
    (tmp_path / "cuda/bin").mkdir(parents=True)
    (tmp_path / "cuda/bin/nvcc").write_text("")
    monkeypatch.setattr(wheel, "TOOLKIT", tmp_path / "cuda")
    monkeypatch.setitem(sys.modules, "nvidia", None)
    spec = SimpleNamespace(submodule_search_locations=[str(nccl.parent)])
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda _name: spec)
    found = wheel.build_environment(source, wheel.build_flags("nccl"))
    assert found.items() >= GIVEN[given].items()
    if not GIVEN[given]:
        assert "-std" not in Path(found["CUDAHOSTCXX"]).read_text()
        assert found["CUDACXX"] == str(tmp_path / "cuda/bin/nvcc")
        home = Path(found["HOROVOD_NCCL_HOME"])
        assert (home / "include").resolve() == nccl / "include"
        assert (home / "lib/libnccl.so").resolve() == nccl / "lib/libnccl.so.2"
    assert (
        "HOROVOD_NCCL_HOME" not in wheel.build_environment(source, {}).keys() - GIVEN[given].keys()
    )


@pytest.mark.parametrize(("files_at_once", "is_unity"), [(4, True), (1, False)])
def test_files_are_compiled_together(wheel, tmp_path, monkeypatch, files_at_once, is_unity):
    """CMake is told so when it configures, and not again when it builds."""
    (tmp_path / "cmake").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "cmake").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environment = wheel.build_environment(tmp_path, {}, files_at_once)
    told = {}
    for argument in ("source", "--build"):
        command = [environment["HOROVOD_CMAKE"], argument]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        told[argument] = done.stdout.split()
    assert told["--build"] == ["--build"]
    assert ("-DCMAKE_UNITY_BUILD=ON" in told["source"]) is is_unity
    assert told["source"][0] == "source"


@pytest.fixture
def builds(wheel, tmp_path, monkeypatch):
    """A build whose outcomes a test lists; gives what was fetched, and what was compiled how."""
    outcomes, fetched, compiled = [], [], []

    def fetch(folder):
        source = folder / f"horovod-{wheel.VERSION}"
        source.mkdir()
        fetched.append(source)
        return source

    def compile_wheel(source, environment):
        told = (source / "run_cmake").read_text()
        compiled.append("together" if "UNITY" in told else "one by one")
        outcome = outcomes.pop(0)
        if outcome is KeyboardInterrupt:
            raise KeyboardInterrupt
        if outcome:
            return outcome
        (source / "dist").mkdir()
        made = source / "dist" / "horovod.whl"
        made.write_text(environment["HOROVOD_LOCAL_VERSION"])
        return made

    monkeypatch.setattr(wheel, "fetch_source", fetch)
    monkeypatch.setattr(wheel, "correct", lambda _source: None)
    monkeypatch.setattr(wheel, "compile_wheel", compile_wheel)
    return SimpleNamespace(
        outcomes=outcomes,
        fetched=fetched,
        compiled=compiled,
        run=lambda: wheel.build({}, tmp_path / "cached"),
    )


@pytest.mark.parametrize(
    ("outcomes", "compiled", "num_fetched"),
    [
        ([""], ["together"], 1),
        (["two names clash", ""], ["together", "one by one"], 2),
        ([KeyboardInterrupt, ""], ["together", "together"], 1),
        ([KeyboardInterrupt, "a file was cut off", ""], ["together", "together", "one by one"], 2),
    ],
    ids=["good", "only one by one", "interrupted", "interrupted in a file"],
)
def test_a_build_ends_in_one_wheel(wheel, builds, outcomes, compiled, num_fetched):
    """Going on where it was interrupted, and from the beginning where that does not work."""
    builds.outcomes += outcomes
    if KeyboardInterrupt in outcomes:
        with pytest.raises(KeyboardInterrupt):
            builds.run()
    made = builds.run()
    assert made.read_text() == wheel.label({})
    assert [path.name for path in made.parent.iterdir()] == ["horovod.whl"]
    assert builds.compiled == compiled
    assert len(builds.fetched) == num_fetched


WHY = {
    "print('CMake Error at x:1 (message):\\n\\n  no toolkit\\nCall Stack')": (
        "CMake Error at x:1 (message): no toolkit"
    ),
    "raise ValueError('mismatched')": "ValueError: mismatched",
    "print('x.cc:1: error: no')": "x.cc:1: error: no",
    "print('CMake Error at x: y'); print('ld: No space left on device')": (
        "ld: No space left on device"
    ),
}


@pytest.mark.parametrize("code", WHY)
def test_why_it_does_not_build_is_what_the_build_says(wheel, tmp_path, code):
    """Its first error, else its last line; not that pip says it failed."""
    (tmp_path / "setup.py").write_text(f"{code}\nimport sys\nsys.exit(1)\n")
    assert wheel.compile_wheel(tmp_path, dict(os.environ)) == WHY[code]


COMPILERS = {
    "": ["g++"],
    "sh": ["sh"],
    "env sh -e": ["env", "sh", "-e"],
    "'/a b/g++' -v": ["/a b/g++", "-v"],
}


@pytest.mark.parametrize("given", COMPILERS)
def test_the_compiler_may_have_arguments(wheel, tmp_path, monkeypatch, given):
    """As `ccache g++`, which is not the name of a program; and a path may have blanks."""
    monkeypatch.setenv("CXX", given)
    assert wheel.compiler() == COMPILERS[given]
    program = tmp_path / "a compiler"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    cxx = wheel.build_environment(tmp_path, {})["CXX"]
    told = subprocess.run([cxx, "a b"], capture_output=True, text=True, check=True).stdout
    assert told == f"a b {wheel.CXX_FLAGS}\n"


REFUSED = {
    "quote in CXX": ({"CXX": "g++ '"}, "CXX=g++ ': No closing quotation; must be a compiler"),
    "wrong CXX": ({"CXX": "no-such-g++ -v"}, "no-such-g++ is missing, needed to build Horovod"),
    "blank in the cache": ({"XDG_CACHE_HOME": "/proc/a b"}, "does not build in a path with ' '"),
    "cache that is a file": ({"XDG_CACHE_HOME": "/dev/null"}, "must be a folder to write in"),
    "cache of the kernel": ({"XDG_CACHE_HOME": "/proc/1"}, "must be a folder to write in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_with_is_one_line(wheel, tmp_path, monkeypatch, capsys, case):
    """Before anything is fetched."""
    variables, words = REFUSED[case]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["build_wheel.py"])
    assert words in fails(capsys, wheel.main)


def test_a_full_disk_is_one_line(wheel, monkeypatch, tmp_path, capsys):
    """Whatever of the build meets it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["build_wheel.py"])

    def build(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(wheel, "build", build)
    with pytest.raises(SystemExit) as caught:
        wheel.main()
    *_, line = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert "No space left on device; that must be a folder to write in with 500 MB" in line


def test_what_does_not_build_at_all_is_one_line(builds, capsys):
    """What the compiler says, and exit code 2; the next set-up begins anew."""
    builds.outcomes += ["no such header", "no such header"]
    with pytest.raises(SystemExit) as caught:
        builds.run()
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("Horovod did not build: no such header\n")
    builds.outcomes.append("")
    assert builds.run().is_file()
    assert len(builds.fetched) == 3


def test_two_builds_of_one_wheel_wait_for_each_other(wheel, tmp_path, monkeypatch):
    """The second one says so, and begins when the first has ended."""
    order, is_told = [], threading.Event()
    monkeypatch.setattr(wheel, "say", lambda what: "waiting for another" in what and is_told.set())

    def second():
        with wheel.locked(tmp_path):
            order.append("second")

    with wheel.locked(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        assert is_told.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_wheel_that_is_not_cached_is_an_exit_code(wheel, monkeypatch, tmp_path, capsys):
    """`--cached` builds nothing, and needs nothing of what builds."""
    monkeypatch.setattr(sys, "argv", ["build_wheel.py", "--cached"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as ended:
        wheel.main()
    assert ended.value.code == 3
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "hetero_hvd" / "wheels" / wheel.cache_key(wheel.build_flags("none"))
    folder.mkdir(parents=True)
    (folder / "horovod.whl").touch()
    wheel.main()
    assert capsys.readouterr().out == f"{folder / 'horovod.whl'}\n"
