"""Our wheel, installed as a user does, without the source tree and what training needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from hetero_hvd.probes import training_packages
from hetero_hvd.remote.bundle import make_bundle

CHECKOUT = Path(__file__).parents[2]
INSTALLED_BY = ("hetero-hvd install", "--find-links FOLDER")
"""In what says how to get torch and Horovod."""


def run(*words, cwd):
    """Run a program without what the tests have on their path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A virtual environment with our wheel and what it requires, without extras."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    shutil.copytree(CHECKOUT / "hetero_hvd", source / "hetero_hvd")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
    built = run(*pip, "wheel", *options, str(source), cwd=folder)
    assert built.returncode == 0, built.stderr
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("hetero_hvd-*.whl")
    done = run(
        *pip, "--python", str(python), "install", "--no-deps", "--no-index", wheel, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    for name, path in make_bundle(["hetero_hvd", "packaging"]).files.items():
        top, *rest = Path(name).parts
        if not top.startswith("hetero_hvd") and not (site / top).exists():
            (site / top).symlink_to(path.parents[len(rest) - 1] if rest else path)
    (folder / "train.py").write_text("import hetero_hvd\nhetero_hvd.Trainer\n")
    (folder / "nodes.yaml").write_text("nodes: [{name: a}, {name: b, address: 10.0.0.2}]")
    return python


SAYS = {
    "hetero-hvd run": ("-m", "hetero_hvd", "run", "--", "train.py"),
    "hetero-hvd benchmark": ("-m", "hetero_hvd", "benchmark"),
    "hetero-hvd bench-comm": ("-m", "hetero_hvd", "bench-comm"),
    "the driver of a job": ("-m", "hetero_hvd", "doctor", "-f", "nodes.yaml"),
}


@pytest.mark.parametrize("what", SAYS)
def test_a_command_says_in_one_line_what_is_missing(bare, what):
    """And how to get it, without a word of what only a checkout has."""
    done = run(bare, *SAYS[what], cwd=bare.parents[2])
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hetero-hvd: {what} needs torch and horovod, not installed in ")
    assert all(words in line for words in INSTALLED_BY)


def test_install_has_nothing_to_give(bare):
    """What is missing here cannot be put on a node."""
    done = run(bare, "-m", "hetero_hvd", "install", cwd=bare.parents[2])
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "which hetero_hvd needs, is not installed in" in line


def test_a_script_gets_one_line(bare):
    """Whatever it asks for first; the error is an ImportError for who catches it."""
    done = run(bare, "train.py", cwd=bare.parents[2])
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("hetero_hvd.Trainer needs torch and horovod")
    code = "try:\n from hetero_hvd import init\nexcept ImportError as error: print(error)"
    assert run(bare, "-c", code, cwd=bare.parents[2]).stdout.startswith("hetero_hvd.init needs")


def test_the_doctor_says_what_to_do(bare):
    """For each package; scripts/setup is not said to be here."""
    done = run(bare, "-m", "hetero_hvd", "doctor", "--json", cwd=bare.parents[2])
    found = json.loads(done.stdout)
    remedies = {one["what"].split()[0]: one["remedy"] for one in found["problems"]}
    assert done.returncode == 1
    for package in ("torch", "horovod"):
        assert all(words in remedies[package] for words in INSTALLED_BY)
    assert not [text for text in remedies.values() if text.startswith("run scripts/setup")]


def test_in_a_checkout_its_own_set_up_is_named(monkeypatch, tmp_path):
    """Elsewhere pip has what is on its index."""
    assert training_packages.how_to_get("torch").startswith("run scripts/setup")
    monkeypatch.setattr(training_packages, "_SETUP", tmp_path / "none")
    assert training_packages.how_to_get("msgspec") == "pip install msgspec"
    assert "source" in training_packages.setup_script()


def test_here_nothing_is_missing():
    """The environment that runs the tests can train."""
    training_packages.require_training("this")
