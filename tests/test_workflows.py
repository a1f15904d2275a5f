"""What GitHub runs: nobody sees it before it is pushed, so it is compared with the code here."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from hetero_hvd.cli.parsing import parse
from hetero_hvd.cli.settings import load
from hetero_hvd.cli.train.run import check_script
from hetero_hvd.errors import HeteroHvdError
from hetero_hvd.probes.doctor import NEWEST_PYTHON, OLDEST_PYTHON

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1)]
OF_DEBIAN_12 = "3.11"
"""The job that runs everything is on this one: the others of the same workflow are smoke."""


def jobs(path):
    """Name to job of a workflow."""
    return yaml.safe_load(path.read_text())["jobs"]


JOBS = {f"{path.stem}-{name}": job for path in WORKFLOWS for name, job in jobs(path).items()}


def steps(job):
    """The shell lines of a job; what GitHub fills in is one word."""
    for step in job["steps"]:
        for line in step.get("run", "").splitlines():
            yield re.sub(r"\$\{\{.*?\}\}", "X", line).strip()


LINES = [(name, line) for name, job in JOBS.items() for line in steps(job)]


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Why our command would refuse a line in a runner's folder, or None."""
    (tmp_path / "source").symlink_to(ROOT)
    monkeypatch.chdir(tmp_path)

    def refused(line):
        words = shlex.split(line, comments=True)
        try:
            arguments = parse(words[1:])
            if words[1] == "run":
                check_script(arguments.command, load(arguments).current.nodes)
        except (HeteroHvdError, ValueError) as error:
            return str(error)
        return None

    return refused


def test_there_are_workflows():
    """And they are read as GitHub reads them."""
    assert {path.stem for path in WORKFLOWS} == {"checks", "nightly", "release"}
    assert all({"runs-on", "steps"} <= job.keys() for job in JOBS.values())


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if "strategy" in job])
def test_every_python_has_its_turn(name):
    """A matrix has all that the package takes; beside the job on Debian, all others."""
    tried = list(JOBS[name]["strategy"]["matrix"]["python"])
    assert tried == [one for one in PYTHONS if name != "checks-smoke" or one != OF_DEBIAN_12]


BOUNDS = {
    "setup.py": r'python_requires=">=3\.(\d+),<3\.(\d+)"',
    "scripts/setup": r"oldest=(\d+) newest=(\d+)",
    ".ci/run": r"\(3, (\d+)\) <= sys\.version_info\[:2\] <= \(3, (\d+)\)",
    "README.md": r"Python 3\.(\d+) to 3\.(\d+)",
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bounds_of_python_are_the_same_everywhere(name):
    """As the doctor has them."""
    oldest, newest = map(int, re.search(BOUNDS[name], (ROOT / name).read_text()).groups())
    assert (oldest, newest - (name == "setup.py")) == (OLDEST_PYTHON[1], NEWEST_PYTHON[1])


def test_our_commands_are_understood(refused):
    """Options, the nodes file and the script are there."""
    ours = [line for _, line in LINES if line.startswith("hetero-hvd ")]
    assert {line.split()[1] for line in ours} >= {"doctor", "run"}
    assert {line: refused(line) for line in ours if refused(line)} == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hetero-hvd run -n 2 -- source/docs/examples/digits.py", "unknown option -n"),
        ("hetero-hvd run -- source/docs/examples/digits.py", "nodes.yaml"),
        ("hetero-hvd run -f source/none.yaml -- source/docs/examples/digits.py", "none.yaml"),
        ("hetero-hvd run -f source/nodes.yaml -- source/docs/examples/no.py", "no such file"),
        ("hetero-hvd docter", "no command"),
    ],
)
def test_a_command_that_would_fail_is_found(refused, line, why):
    """So that the test above is one."""
    assert why in refused(line)


def test_our_scripts_are_there():
    """Each that a step names; what it starts can be started."""
    named = {
        word
        for _, line in LINES
        for word in shlex.split(line, comments=True)
        if re.match(r"(source/)?(\.ci|scripts)/", word)
    }
    assert named >= {".ci/run", "scripts/test", "scripts/horovod/portable-wheel"}
    for word in named:
        assert os.access(ROOT / word.removeprefix("source/"), os.X_OK), word


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_repository_has_to_have_is_documented(path):
    """Variables and secrets are settings of the repository, which no file shows."""
    page = (ROOT / "docs" / "contributing.md").read_text().partition("## Releasing")[2]
    needed = set(re.findall(r"\b(?:vars|secrets)\.(\w+)", path.read_text()))
    assert {name for name in needed if f"`{name}`" not in page} == set()
    assert bool(needed) is (path.stem == "release")


def of_debian(job):
    """Whether a job runs in Debian's own image, which has no git."""
    container = job.get("container", "")
    return (container["image"] if isinstance(container, dict) else container).startswith("debian:")


def test_git_is_there_before_the_checkout():
    """A container without git gets the files alone: tests that ask git could not run."""
    first = {name: job["steps"][0] for name, job in JOBS.items() if of_debian(job)}
    assert first
    assert [name for name, step in first.items() if " git" not in step.get("run", "")] == []
