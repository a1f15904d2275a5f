"""The doctor tells what is installed, and each thing that will not work, with the reason."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from build_wheel import read_patches

from hetero_hvd.probes.doctor import (
    _PACKAGES,
    OLDEST_TORCH,
    _machine_problems,
    _version_problems,
    diagnose,
)

CHECKOUT = Path(__file__).parents[2]
SITE = Path(importlib.metadata.distribution("psutil").locate_file("")).resolve()
ASK = "import json; from hetero_hvd.probes.doctor import diagnose; "
PRINT = "found = diagnose(); print(json.dumps([found.as_dict(), found.text()]))"


@pytest.fixture
def bare(tmp_path):
    """Diagnose in a new virtual environment that has psutil and what is given; nothing else."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    site = tmp_path / f"venv/lib/python3.{sys.version_info.minor}/site-packages"
    (site / "hetero_hvd").symlink_to(CHECKOUT / "hetero_hvd")

    def diagnose_with(*packages, stock=False):
        for package in ("psutil", "msgspec", *packages):
            (site / package).symlink_to(SITE / package)
        if stock:
            metadata = site / "horovod-0.28.1.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
        done = subprocess.run([python, "-c", ASK + PRINT], check=True, capture_output=True)
        facts, text = json.loads(done.stdout)
        return facts, {problem["what"]: problem for problem in facts["problems"]}, text

    return diagnose_with


@pytest.fixture(scope="module")
def here():
    """The diagnosis of this environment."""
    return diagnose()


def test_here_training_can_start(here):
    """The environment that runs the tests can train, with Gloo and without a GPU too."""
    assert here.can_train
    assert here.horovod.operations["gloo"]
    assert here.horovod.import_error is None
    assert here.text().endswith("\nTraining can start.")


def test_our_wheel_says_what_is_in_it(here):
    """The corrections and the torch it was built for are read from the wheel itself."""
    assert here.horovod.version.startswith("0.28.1+hetero.")
    assert here.horovod.built_for_torch == here.versions["torch"].partition("+")[0]
    assert here.horovod.corrections == tuple(patch.name for patch in read_patches())
    assert "process-sets-keep-the-interface" in here.horovod.corrections


def test_findings_are_ready_for_json(here):
    """`as_dict` has every finding, in types that JSON knows."""
    found = json.loads(json.dumps(here.as_dict()))
    assert found["versions"]["python"] == here.versions["python"]
    assert found["can_train"] is True
    assert {interface["name"] for interface in found["hardware"]["interfaces"]} >= {"lo"}


def test_without_horovod_and_torch_it_says_so(bare):
    """Both are named as what stops training; nothing else fails for want of them."""
    facts, problems, text = bare()
    assert facts["can_train"] is False
    assert facts["horovod"] is None
    stopping = [what for what, problem in problems.items() if problem["stops_training"]]
    assert {what.split()[0] for what in stopping} >= {"torch", "horovod"}
    assert text.endswith("\nTraining cannot start.")


def test_a_stock_horovod_works_but_recovers_slowly(bare):
    """A Horovod without our corrections is a note that says what is lost, not an error."""
    _, problems, _ = bare("horovod", stock=True)
    problem = problems["Horovod 0.28.1 has none of hetero_hvd's corrections"]
    assert not problem["stops_training"]
    assert "timeout" in problem["consequence"]


def test_an_import_that_fails_is_reported_with_its_reason(bare, tmp_path):
    """A torch that cannot be imported stops training, and the last line says why."""
    torch = tmp_path / f"venv/lib/python3.{sys.version_info.minor}/site-packages/torch"
    metadata = torch.with_name("torch-9.9.dist-info")
    for folder in (torch, metadata):
        folder.mkdir()
    (metadata / "METADATA").write_text("Name: torch\nVersion: 9.9\n")
    (torch / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')\n")
    facts, problems, text = bare("horovod", stock=True)
    what = "import horovod.torch fails: ImportError: undefined symbol: _ZN3c10"
    assert problems[what]["stops_training"]
    assert f"ERROR: {what}" in text
    assert facts["can_train"] is False


@pytest.mark.parametrize(
    ("version", "is_told"), [("2.6.0+cu124", True), ("2.7.0", False), ("2.13.0+cpu", False)]
)
def test_a_torch_without_what_is_used_stops_training(version, is_told):
    """With the version to install; setup.py has the same bound."""
    versions = dict.fromkeys(("python", *_PACKAGES), version)
    found = [each for each in _version_problems(versions) if each.what == f"torch is {version}"]
    assert [each.stops_training for each in found] == [True] * is_told
    assert f"torch>={'.'.join(map(str, OLDEST_TORCH))}" in (CHECKOUT / "setup.py").read_text()


@pytest.mark.parametrize("has_nccl", [True, False])
def test_nccl_is_called_experimental_with_it_and_without_it(here, has_nccl):
    """Who has it should know; who has a GPU and no NCCL is not told to get it."""
    build = dataclasses.replace(here.horovod, operations={"gloo": True, "nccl": has_nccl})
    problems = list(_machine_problems(here.hardware, build, {"devices": ["Card"]}))
    (told,) = [each for each in problems if "NCCL" in each.what]
    assert "experimental" in told.consequence + told.remedy
    assert not told.stops_training


def test_an_import_that_hangs_is_given_up():
    """The doctor answers even if torch does not."""
    found = diagnose(timeout_seconds=0.01)
    assert found.horovod.import_error == "no answer in 0.01 s"
    assert not found.can_train
