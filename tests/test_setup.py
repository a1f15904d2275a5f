"""Set-up fails in one clear line, and builds exactly the Horovod that we mean."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
SETUP = CHECKOUT / "scripts" / "setup"


@pytest.fixture(scope="module")
def wheel():
    """The module `scripts/horovod_wheel.py`."""
    return importlib.import_module("horovod_wheel")


@pytest.fixture
def source(wheel, tmp_path):
    """A source tree in which every correction finds its anchor."""
    for correction in wheel.CORRECTIONS:
        path = tmp_path / correction.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"before\n{correction.anchor}after\n")
    return tmp_path


def fails(capsys, call, *args):
    """The one line that a call ends with."""
    with pytest.raises(SystemExit) as caught:
        call(*args)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def run_setup(*args, **environment):
    """Run `scripts/setup` from another folder, without standard input."""
    return subprocess.run(
        [SETUP, *args],
        cwd="/",
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_correction_is_applied_and_named(wheel, source):
    """The corrected source has each replacement, and a notice that names each correction."""
    wheel.correct(source)
    notice = (source / "NOTICE.hetero_hvd").read_text()
    for correction in wheel.CORRECTIONS:
        assert correction.replacement in (source / correction.path).read_text()
        assert f"correction {correction.name}: {correction.path}\n" in notice


@pytest.mark.parametrize(("times", "change"), [(0, "gone"), (2, "{anchor}{anchor}")])
def test_a_correction_without_its_anchor_fails(wheel, source, capsys, times, change):
    """A source that is not as expected is refused: which correction, which file, how many."""
    last = wheel.CORRECTIONS[-1]
    path = source / last.path
    path.write_text(path.read_text().replace(last.anchor, change.format(anchor=last.anchor)))
    line = fails(capsys, wheel.correct, source)
    assert last.name in line
    assert f"occurs {times} times in {last.path}, must be 1" in line


def test_a_missing_file_fails_like_a_missing_anchor(wheel, tmp_path, capsys):
    """An empty folder is no source of Horovod."""
    assert "occurs 0 times" in fails(capsys, wheel.correct, tmp_path)


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
    return set(found) - {"cmake"}


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
    """Another build flag, correction or C++ standard is another wheel; the same is the same."""
    flags = wheel.build_flags("none")
    key = wheel.cache_key(flags)
    keys = {wheel.cache_key(wheel.build_flags("nccl"))}
    changed = wheel.CORRECTIONS[0]._replace(replacement="something else")
    monkeypatch.setattr(wheel, "CORRECTIONS", (changed, *wheel.CORRECTIONS[1:]))
    keys.add(wheel.cache_key(flags))
    monkeypatch.setattr(wheel, "CXX_STANDARD", "-std=gnu++23")
    keys.add(wheel.cache_key(flags))
    monkeypatch.undo()
    assert wheel.cache_key(flags) == key
    assert key not in keys
    assert len(keys) == 3


def test_the_build_sees_no_foreign_switches(wheel, tmp_path, monkeypatch):
    """What the user's environment says to Horovod's build does not get into a cached wheel."""
    monkeypatch.setenv("HOROVOD_WITH_MXNET", "1")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    environment = wheel.build_environment(tmp_path, wheel.build_flags("none"), "key")
    assert "HOROVOD_WITH_MXNET" not in environment
    assert "HOROVOD_GPU_OPERATIONS" not in environment
    assert environment["HOROVOD_LOCAL_VERSION"] == "hetero.key"


def test_a_wrong_argument_is_one_line():
    """`scripts/setup` says what it takes."""
    done = run_setup("--gpu", "rocm")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "scripts/setup: unknown argument '--gpu rocm'; usage: scripts/setup [--gpu none|nccl]"
    ]


def test_a_wrong_python_is_one_line(tmp_path):
    """An interpreter that will not do is refused before anything is installed."""
    copy = tmp_path / "scripts"
    copy.mkdir()
    files = ("scripts/horovod_wheel.py", "scripts/horovod_corrections.py")
    for name in ("scripts/setup", *files, "setup.py", "scripts/constraints.txt"):
        (tmp_path / name).write_bytes((CHECKOUT / name).read_bytes())
    done = subprocess.run(
        ["sh", copy / "setup"],
        env=os.environ | {"PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("scripts/setup: /bin/false is not a Python 3.11 to 3.13 with venv")
    assert not (tmp_path / ".venv").exists()


@pytest.mark.skipif(not (CHECKOUT / ".venv/stamp").exists(), reason="scripts/setup has not run")
def test_a_second_run_does_nothing():
    """Where nothing has changed no interpreter is even looked for, and not a word is said."""
    done = run_setup(CI="true", PYTHON="/bin/false")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_pin_is_exact_and_portable():
    """`scripts/constraints.txt` holds versions only: no index, no path, no local build."""
    lines = (CHECKOUT / "scripts" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [p for p in pins if not re.fullmatch(r"[A-Za-z][\w.-]*==[0-9][0-9a-z.]*", p)] == []


@pytest.mark.xdist_group("of its own")
def test_what_is_shared_is_made_in_one_process(request):
    """pytest-xdist knows the groups of `tests/conftest.py` by the ends of the tests' names."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@of its own")
