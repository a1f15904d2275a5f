"""`scripts/gpu-check`: what it says without a GPU, and its parts with a CPU in the card's place."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from gpu_check import __main__ as command
from gpu_check import faults, installing, packing, site, speed, training
from gpu_check.clusters import ALL, CPUS, Run, check_unequal, distance, far, spread
from gpu_check.device import agree
from gpu_check.site import Check, CheckError, Figure, Site, Skipped

from hetero_hvd.probes.doctor import NEWEST_PYTHON, OLDEST_PYTHON

CHECKOUT = Path(__file__).parents[1]
FOUND = CHECKOUT / ".gpu-check" / "found.json"


def run(*words, timeout=400):
    """Run the command with the Python of the tests."""
    return subprocess.run(
        [CHECKOUT / "scripts" / "gpu-check", *words],
        env=os.environ | {"PYTHON": sys.executable, "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


PARTS = "install, device, training, trainers, faults, bits, speed, examples, nccl"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gradient"], f"unknown part 'gradient': must be of {PARTS}"),
        (["--device", "tpu"], "--device tpu: must be of auto, cuda, xpu, cpu"),
        (["--pack", "3.9"], "--pack 3.9: must be of 3.11, 3.12, 3.13, 3.14"),
        (["--installed", "install"], "--installed: leave out the part install, or the flag"),
        (["--device", "xpu", "device"], "no Python with torch and a GPU"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(words, said):
    """Exit code 2; no machine has an NVIDIA's and an Intel's card."""
    done = run(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_has_no_python_is_told_what_it_can_do(monkeypatch, capsys, device):
    """Not to ask for what it has asked for."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("PYTHON", raising=False)
    with pytest.raises(SystemExit):
        installing.find_python(device)
    said = capsys.readouterr().err
    assert ("GPU" in said) is ("--device cpu" in said) is (device != "cpu")


def raising(error):
    """A check's function that ends so."""

    def check(_):
        raise error

    return check


@pytest.mark.parametrize(
    ("check", "device", "seconds", "result", "words"),
    [
        (lambda _: Figure(1.0, "of all", {}), "cpu", (0, 99), "pass", "1 of all"),
        (raising(CheckError("too far")), "cuda", (0, 99), "fail", "too far"),
        (raising(Skipped("no nvcc")), "cuda", (0, 99), "skipped", "no nvcc"),
        (raising(KeyError("traceEvents")), "cuda", (0, 99), "fail", "KeyError: 'traceEvents'"),
        (raising(OSError("disk full")), "cuda", (0, 99), "fail", "OSError: disk full"),
        (lambda _: Figure(1.0, "", {}), "cuda", (475, 99), "skipped", "the part's 8 minutes"),
        (lambda _: Figure(1.0, "", {}), "cuda", (0, 5), "skipped", "the whole's 20: run the part"),
    ],
)
def test_each_end_of_a_check_has_its_record(check, device, seconds, result, words):
    """A pass has its figure, all else its reason; what is found half-way is no pass."""
    age, left = seconds
    site = Site(device=device, python="", ends_at=time.monotonic() + left)
    site.began_at -= age
    record = command.judge(Check(check, "asks"), site)
    assert record["result"] == result
    assert words in command.line("part/check", record)


def test_what_needs_a_card_is_never_passed_without():
    """Whatever the check would say; and the table has a check of each kind."""
    site = Site(device="cpu", python="")
    checks = [check for part in command.PARTS.values() for check in part.CHECKS.values()]
    needy = [check for check in checks if check.needs_card]
    assert len(needy) >= 10
    for check in needy:
        record = command.judge(check, site)
        assert (record["result"], record["reason"]) == ("skipped", "no card")


def left(tmp_path, **workers):
    """A run in which these workers left so."""
    for name, what in workers.items():
        (tmp_path / f"left-{name}:0.json").write_text(json.dumps(what))
    return Run(tmp_path, "")


def test_replicas_that_differ_or_are_missing_fail(tmp_path):
    """By how much they differ; NaN is no small difference; equal parts prove nothing."""
    nan = float("nan")
    assert distance([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert distance([1.0, nan], [1.0, 2.5]) != 0.0
    with pytest.raises(CheckError, match="1 parameters here, 2 there"):
        distance([1.0], [1.0, 2.0])
    one, other = {"parameters": [1.0], "parts": [3]}, {"parameters": [4.0], "parts": [3]}
    found = left(tmp_path, cpu1=one, cpu2=other)
    assert spread(found, ("cpu1", "cpu2")) == 3.0
    assert far(found, [2.0], ("cpu1", "cpu2")) == 2.0
    with pytest.raises(CheckError, match="all parts were equal"):
        check_unequal(found)
    with pytest.raises(CheckError, match="did not come to the end"):
        _ = found.card


@pytest.mark.parametrize(
    "there", [(), ("card",), ("card", "cpu1", "cpu2"), (*ALL, "cpu4")], ids=len
)
def test_a_worker_that_did_not_come_to_the_end_fails(tmp_path, there):
    """However well those agree that did: one agrees with itself."""
    found = left(tmp_path, **{name: {"parameters": [1.0]} for name in there})
    for judged in (spread, lambda run: far(run, [1.0])):
        with pytest.raises(CheckError, match="these workers came to the end: "):
            judged(found)


CARD = {"parameters": [1.0], "parts": [9] * 5, "step_seconds": [1.0], "num_parameters": 1}
LEFT = {name: CARD | {"parts": [number] * 9} for number, name in enumerate(ALL)} | {"card": CARD}
NO_GRAPH = {"graphs": {"recorded": 0, "launched": 0}}
NEVER_LAUNCHED = {"graphs": {"recorded": 1, "launched": 0}}
TOO_EASY = {
    "gradients, one missing": (training.gradients, {"cpu3": None}, "came to the end"),
    "bf16, alone": (training.bf16, dict.fromkeys(CPUS), "came to the end"),
    "stale, alone": (training.stale, dict.fromkeys(CPUS), "came to the end"),
    "oom, one missing": (faults.oom, {"cpu1": None}, "came to the end"),
    "kill, nobody came back": (faults.kill, {"card": None}, "came to the end"),
    "kill, of nobody": (faults.kill, {"card": CARD | {"parts": [9] * 9}}, "who was killed"),
    "graphs, none": (training.graphs, {"card": CARD | NO_GRAPH}, "graphs that were recorded"),
    "graphs, not used": (training.graphs, {"card": CARD | NEVER_LAUNCHED}, "were launched"),
    "staging, one missing": (partial(speed.staged, size="1M"), {}, "came to the end"),
}


@pytest.mark.parametrize("name", TOO_EASY)
def test_what_would_pass_too_easily_fails(tmp_path, monkeypatch, name):
    """Each check asks for what it is about, and for all who should be there."""
    check, changes, words = TOO_EASY[name]
    more = {"losses": [2.0] + [1.0] * 20, "scale": 1.0, "num_steps": 9, "device": "cuda:0"}
    more |= {"calls": [(4, 8), (4, 4)], "graphs": {"recorded": 1, "launched": 1}}
    told = {n: more | (LEFT[n] | (changes.get(n) or {})) for n in ALL if changes.get(n, 1)}
    if check is training.graphs:
        told = {n: told[n] for n in ("card", "cpu1")}
    found = left(tmp_path, **told)
    (tmp_path / "met").touch()
    for module in (training, faults, speed):
        monkeypatch.setattr(module, "train", lambda *_, **__: found)
        if module is not speed:
            monkeypatch.setattr(module, "alone", lambda *_, **__: CARD | more)
    monkeypatch.setattr(training.shutil, "which", lambda _: "cc")
    with pytest.raises(CheckError, match=words):
        check(Site(device="cuda", python=""))


def test_the_pythons_are_those_of_the_doctor():
    """What may be packed is what may be installed."""
    first, last = OLDEST_PYTHON[1], NEWEST_PYTHON[1]
    known = tuple(f"3.{minor}" for minor in range(first, last + 1))
    assert known == site.PYTHONS


def test_a_new_environment_has_what_that_before_it_had(tmp_path):
    """Also where that one has its torch from another: three in a row."""
    first, second = tmp_path / "first", tmp_path / "second"
    here = Site(device="cpu", python=sys.executable)
    for place in (first, second):
        python = installing.make_environment(here, place, tmp_path / "log")
        here = Site(device="cpu", python=python)
    asked = "import sys, msgspec; print(sys.prefix, msgspec.__version__)"
    told = here.run([here.python, "-c", asked], log=tmp_path / "log")
    assert told.split() == [str(second), version("msgspec")]


def test_losses_that_are_no_numbers_fail():
    """A few are not known at first; not most of them."""
    nan = float("nan")
    assert training.told_losses({"losses": [nan, 1.0, 2.0, 3.0]}) == [1.0, 2.0, 3.0]
    with pytest.raises(CheckError, match="losses that are numbers"):
        training.told_losses({"losses": [nan, nan, 2.0]})


@pytest.mark.parametrize(
    ("ours", "row", "is_equal"),
    [
        ({}, ["GPU-1", "H200", "143771", "700.00"], True),
        ({"name": "H100"}, ["GPU-1", "H200", "143771", "700.00"], False),
        ({"memory_bytes": 80 * 2**30}, ["GPU-1", "H200", "143771", "700.00"], False),
        ({"power_limit_watts": 350.0}, ["GPU-1", "H200", "143771", "700.00"], False),
        ({"power_limit_watts": None}, ["GPU-1", "H200", "143771", "[N/A]"], True),
    ],
)
def test_a_card_that_nvidia_smi_sees_otherwise_is_told(ours, row, is_equal):
    """A figure that one of them does not know is no difference."""
    known = {"name": "H200", "memory_bytes": 143771 * 2**20, "power_limit_watts": 700.0}
    assert agree(known | ours, row) == is_equal
    assert not agree(None, row)


def test_a_wheel_is_taken_for_the_torch_that_it_was_built_for(tmp_path):
    """It says so itself; a stock one says nothing."""
    wheel = tmp_path / "horovod-0.28.1-cp312-cp312-linux_x86_64.whl"
    for text, torch in (("built for torch 2.7.1\n", "2.7.1"), ("", "")):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("horovod.dist-info/licenses/NOTICE.hetero_hvd", text)
        assert installing.built_for(wheel) == torch
        assert installing.is_built_for(wheel, "2.7.1+cu126") == bool(torch)
        assert not installing.is_built_for(wheel, "2.7.0+cu126")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("horovod/__init__.py", "")
    assert installing.built_for(wheel) == ""


def test_what_is_packed_is_what_setup_needs_but_torch_and_numpy():
    """What these need in turn is for pip to find; what comes with torch is not asked for."""
    from importlib.metadata import requires  # noqa: PLC0415

    direct = {packing.name_of(each) for each in requires("hetero_hvd") if "extra ==" not in each}
    assert {*packing.requirements()} == direct - {*packing.BESIDE_TORCH}
    assert not {"torch", "numpy"} & {*packing.requirements(), *packing.FOR_HOROVOD}


def test_the_part_of_a_step_that_is_waited_is_read_from_the_records(tmp_path):
    """The worker that waits least tells what the sums themselves take."""
    (tmp_path / "out").mkdir()
    with closing(sqlite3.connect(tmp_path / "out" / "run.sqlite")) as database, database:
        database.execute("CREATE TABLE rollups (worker, comm_wait_seconds, step_seconds)")
    with pytest.raises(CheckError, match="no step"):
        speed.waited_share(Run(tmp_path, ""))
    with closing(sqlite3.connect(tmp_path / "out" / "run.sqlite")) as database, database:
        rows = [("a", 1.0, 5.0), ("a", 1.0, 5.0), ("b", 4.0, 10.0)]
        database.executemany("INSERT INTO rollups VALUES (?, ?, ?)", rows)
    assert speed.waited_share(Run(tmp_path, "")) == 0.2


@pytest.mark.matrix
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["training", "faults", "bits", "speed", "examples"])
def test_each_part_passes_with_a_cpu_in_the_place_of_the_card(part):
    """Nothing fails; what needs a card is skipped and says so."""
    done = run("--device", "cpu", "--installed", part, timeout=590)
    assert done.returncode == 0, done.stdout
    records = {k: v for k, v in json.loads(FOUND.read_text()).items() if k.startswith(part)}
    results = {record["result"] for record in records.values()}
    assert "pass" in results
    assert results <= {"pass", "skipped"}
    assert all(v["reason"] == "no card" for v in records.values() if v["result"] == "skipped")


@pytest.mark.matrix
@pytest.mark.process
@pytest.mark.timeout(900)
def test_what_was_packed_installs_without_a_network():
    """On a machine that has a Python with torch, a compiler and a loopback device that is down."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    packed = run("--pack", "{}.{}".format(*sys.version_info), timeout=300)
    assert packed.returncode == 0, packed.stderr
    done = subprocess.run(
        ["unshare", "-n", CHECKOUT / "scripts" / "gpu-check", "--device", "cpu", "install"],
        env=os.environ | {"PYTHON": sys.executable, "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 pass, 0 fail, 0 skipped" in done.stdout
