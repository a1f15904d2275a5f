"""Set-up fails in one clear line, and begins anew where it has to."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

CHECKOUT = Path(__file__).parents[1]
SETUP = CHECKOUT / "scripts" / "setup"


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


def test_a_wrong_argument_is_one_line():
    """`scripts/setup` says what it takes."""
    done = run_setup("--gpu", "rocm")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("scripts/setup: unknown argument '--gpu rocm'; usage: scripts/setup [")


@pytest.fixture
def copied(tmp_path):
    """What scripts/setup needs of a checkout, in an odd place; gives a function that runs it."""
    folder = tmp_path / "it's a b"
    shutil.copytree(CHECKOUT / "scripts" / "horovod", folder / "scripts" / "horovod")
    for name in ("scripts/setup", "setup.py", "scripts/constraints.txt"):
        (folder / name).write_bytes((CHECKOUT / name).read_bytes())

    def run(python):
        return subprocess.run(
            ["sh", folder / "scripts" / "setup"],
            env=os.environ | {"PYTHON": str(python)},
            capture_output=True,
            text=True,
            check=False,
        )

    return SimpleNamespace(folder=folder, run=run)


def test_a_wrong_python_is_one_line(copied):
    """An interpreter that will not do is refused before anything is installed."""
    done = copied.run("/bin/false")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("scripts/setup: /bin/false is not a Python 3.11 to 3.14 with venv")
    assert not (copied.folder / ".venv").exists()


def test_an_environment_of_another_checkout_is_left_alone(copied, tmp_path):
    """To make ours would empty what the link leads to."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "torch").touch()
    (copied.folder / ".venv").symlink_to(tmp_path / "theirs")
    done = copied.run(sys.executable)
    assert done.returncode == 2
    assert f".venv is a link to {tmp_path / 'theirs'}" in done.stderr
    assert (tmp_path / "theirs" / "torch").exists()


FAKE = """#!/bin/sh
case $*/$0 in
  *"version_info"*) exit 0 ;; # it is one that will do
  *"sys.version"*/.venv/*) echo there ;;
  *"sys.version"*) echo {version} ;;
  *INSTALLER*) [ -f {folder}/has-pip ] && [ -f .venv/pyvenv.cfg ] ;;
  *"sys.prefix"*) [ -f .venv/pyvenv.cfg ] ;;
  *"-m venv"*)
    echo "$@" >>{folder}/made
    rm -rf .venv/bin; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *"-m pip"*) echo no index; exit 1 ;;
esac
"""
"""In the place of Python: `there` is the version of what is in .venv."""


@pytest.mark.parametrize(
    ("version", "has_pip", "place", "is_made"),
    [
        ("there", True, "", False),
        ("other", True, "", True),
        ("there", False, "", True),
        ("there", True, "/moved", True),
    ],
    ids=["the same", "another Python", "killed before pip was there", "moved"],
)
def test_an_environment_that_will_not_do_is_made_anew(copied, version, has_pip, place, is_made):
    """One of another Python, of half a set-up, or of another place, which its programs name."""
    tmp_path = copied.folder.parent
    python = tmp_path / "python"
    python.write_text(FAKE.format(version=version, folder=tmp_path))
    python.chmod(0o755)
    (copied.folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(python, copied.folder / ".venv" / "bin" / "python")
    made_at = f"{place}{copied.folder}/.venv"
    (copied.folder / ".venv" / "pyvenv.cfg").write_text(f"command = python -m venv {made_at}\n")
    if has_pip:
        (tmp_path / "has-pip").touch()
    done = copied.run(python)
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("could not be installed: see pip's lines above\n")
    assert (tmp_path / "made").exists() is is_made


BROKEN = {
    "nothing": lambda _: None,
    "its Python is gone": lambda python: (python.unlink(), python.symlink_to("/no/python3.11")),
    "its Python does not start": lambda python: python.write_text("#!/bin/false\n"),
    "no file": lambda python: python.unlink(),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("tools", ["", ",dev"])
def test_what_is_done_counts_only_as_long_as_it_runs(copied, name, tools):
    """The stamp stays where somebody removes the Python that .venv leads to."""
    folder, programs = copied.folder, copied.folder.parent / "programs"
    own = folder / ".venv" / "bin" / "python"
    for python in (programs / "python3.11", own):
        python.parent.mkdir(parents=True)
        python.write_text(FAKE.format(version="there", folder=folder.parent))
        python.chmod(0o755)
    text = (folder / "scripts" / "setup").read_text()
    stamp = text.partition('\nstamp="')[2].partition('"\ndone')[0]
    words = ["sh", "-c", f'gpu=none; printf %s "{stamp}"']
    done = subprocess.check_output(words, cwd=folder, env=os.environ | {"PWD": str(folder)})
    (folder / ".venv" / "stamp").write_bytes(done + tools.encode() + b"\n")
    BROKEN[name](own)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["sh", folder / "scripts" / "setup"],
        env=os.environ | {"PYTHON": "", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if name == "nothing":
        assert (found.returncode, found.stderr) == (0, "")
    else:
        assert "could not be installed" in found.stderr
        assert (folder.parent / "made").exists()


def test_two_set_ups_of_one_checkout_wait_for_each_other(copied):
    """The second says so; what the first has started counts, too."""
    with (copied.folder / "scripts" / "setup").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(
            ["sh", copied.folder / "scripts" / "setup"],
            env=os.environ | {"PYTHON": "/bin/false"},
            stderr=subprocess.PIPE,
            text=True,
        ) as second:
            told = second.stderr.readline()
            assert told == f"scripts/setup: waiting for another set-up in {copied.folder}\n"
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert "/bin/false is not a Python" in second.stderr.read()
    assert second.returncode == 2


@pytest.mark.skipif(not (CHECKOUT / ".venv/stamp").exists(), reason="scripts/setup has not run")
def test_a_second_run_does_nothing(tmp_path):
    """Where nothing has changed no interpreter is even looked for, and not a word is said."""
    for number in range(11, 15):
        (tmp_path / f"python3.{number}").symlink_to("/bin/false")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run_setup(CI="true", PATH=path, PYTHON="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    refused = run_setup(PYTHON="/bin/false")
    assert refused.returncode == 2
    assert "/bin/false is not a Python" in refused.stderr


def test_every_pin_is_exact_and_portable():
    """`scripts/constraints.txt` holds versions only: no index, no path, no local build."""
    lines = (CHECKOUT / "scripts" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [
        p for p in pins if not re.fullmatch(r"[A-Za-z][\w.-]*==([0-9]+!)?[0-9][0-9a-z.]*", p)
    ] == []


@pytest.mark.xdist_group("of its own")
def test_what_is_shared_is_made_in_one_process(request):
    """pytest-xdist knows the groups of `tests/conftest.py` by the ends of the tests' names."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@of its own")
