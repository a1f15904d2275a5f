"""The scripts in shell are sound, and refuse what they do not take before they do anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "scripts", ROOT / "scripts" / "horovod", ROOT / ".ci")
FILES = sorted(path for folder in FOLDERS for path in folder.iterdir() if path.is_file())
SHELL = [path for path in FILES if path.read_bytes().startswith(b"#!/bin/sh\n")]
HOROVOD = {"portable-wheel": "FOLDER", "arm64": "qemu-user"}


def start(path, *words, **environment):
    """Run a script from another folder."""
    return subprocess.run(
        [path, *words],
        cwd="/",
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_a_script_can_be_read_to_its_end(path):
    """By any shell, and it ends at the first command that fails, or at a name that is not set."""
    subprocess.run(["sh", "-n", path], check=True)
    assert os.access(path, os.X_OK)
    assert "\nset -eu\n" in path.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_no_script_has_a_mistake_that_a_tool_knows():
    """Quoting above all."""
    subprocess.run(["shellcheck", "--severity=error", *SHELL], check=True)


@pytest.mark.parametrize("name", HOROVOD)
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_help(name, word):
    """And not the name of a folder."""
    done = start(ROOT / "scripts" / "horovod" / name, word)
    assert (done.returncode, done.stderr) == (0, "")
    assert HOROVOD[name] in done.stdout
    assert not Path("/", word).exists()


MISTAKES = {
    "portable-wheel": [(), ("",), ("--folder",), ("a", "b"), ("--", "a")],
    "arm64": [("",), ("--folder",), ("a",), ("a", "b")],
}


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name, all_of in MISTAKES.items() for words in all_of]
)
def test_what_is_not_taken_is_one_line(name, words):
    """Exit code 2, before anything is fetched or made."""
    done = start(ROOT / "scripts" / "horovod" / name, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"scripts/horovod/{name}" in line


def test_a_compiler_for_arm64_that_is_missing_is_one_line(tmp_path):
    """With what to install."""
    programs = ("sh", "dirname", "cd", "sed")
    for program in filter(shutil.which, programs):
        (tmp_path / program).symlink_to(shutil.which(program))
    done = start(ROOT / "scripts" / "horovod" / "arm64", PATH=str(tmp_path))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "is missing: apt-get install g++-aarch64-linux-gnu qemu-user cmake" in line


TOOLS = ("ruff", "lint-imports", "mypy")
SUITE = '''
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def passes_from(number):
    """Fail in all runs of a test before this one."""
    with (HERE / "runs").open("a") as file:
        file.write("x")
    assert (HERE / "runs").stat().st_size >= number


@pytest.mark.parametrize("number", range({num_others}))
def test_other(number):
    with (HERE / "others").open("a") as file:
        file.write("x")


'''
GROUPED = '@pytest.mark.xdist_group("tests/some.py")\n'
SIGNS = '@pytest.mark.parametrize("it", ["a@b c", "a@[b]"])\n'
AGAIN = {
    "a test": ("def test_it(): passes_from(2)", 0, 2),
    "a test of a group": (f"{GROUPED}def test_it(): passes_from(2)", 0, 2),
    "a case with signs in its name": (f"{SIGNS}def test_it(it): passes_from(3)", 0, 4),
    "such a case of a group": (f"{GROUPED}{SIGNS}def test_it(it): passes_from(3)", 0, 4),
    "a test that fails again": ("def test_it(): passes_from(3)", 1, 2),
    "too many": (
        '@pytest.mark.parametrize("it", range(21))\ndef test_it(it): passes_from(99)', 1, 21,
    ),
    "what cannot be collected": ("passes_from(99)", 1, None),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
def test_only_what_has_failed_runs_once_more(name, tmp_path):
    """Whatever its name looks like to pytest-xdist; what passed does not run again."""
    source, code, num_runs = AGAIN[name]
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "check", tmp_path / "scripts")
    (tmp_path / "tools").mkdir()
    for tool in TOOLS:
        (tmp_path / "tools" / tool).symlink_to("/bin/true")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_suite.py").write_text(SUITE.format(num_others=5) + source + "\n")
    done = start(tmp_path / "scripts" / "check", PATH=f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    assert done.returncode == code, done.stdout + done.stderr
    if num_runs is not None:
        assert (tmp_path / "others").read_text() == "xxxxx"
        assert (tmp_path / "runs").read_text() == "x" * num_runs
