"""What `hetero-hvd doctor --kubernetes` sees of a pod: real mounts, networks and users."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_hvd.cli import main
from hetero_hvd.deploy.kubernetes.options import SHARED_MEMORY, places_of
from hetero_hvd.pod import network, resources
from hetero_hvd.pod.findings import PodFinding
from hetero_hvd.pod.resources import core_finding, gpu_finding
from tests.kit.checkout import CHECKOUT, python_path
from tests.pod.pod_rig import CASES

RIG = Path(__file__).with_name("pod_rig.py")
ERROR, NOTE = True, False
EXPECTED = {
    "as it should be": {},
    "the driver's own pod": {},
    "a key that the group can read": {"keys/cluster.key": (ERROR, "found mode 0440, but a clust")},
    "a key of somebody else": {"keys/cluster.key": (ERROR, "Permission denied")},
    "a token that is none": {"keys/token": (ERROR, "must hold one line of 16 or more letters")},
    "no keys": {
        "keys/cluster.key": (ERROR, "No such file"),
        "keys/token": (ERROR, "No such file"),
    },
    "a small shared memory": {
        f"{SHARED_MEMORY} size": (NOTE, "raise --shm"),
        f"{SHARED_MEMORY} write": (NOTE, "make room"),
    },
    "a shared memory as large as memory": {f"{SHARED_MEMORY} size": (NOTE, "raise --agent-memory")},
    "a shared memory on disk": {f"{SHARED_MEMORY} size": (NOTE, "medium: Memory")},
    "a volume that is read-only": {"runs write": (ERROR, "it is read-only")},
    "a volume that is full": {"runs write": (ERROR, "make room")},
    "a volume that is nearly full": {"runs write": (NOTE, "make room")},
    "a volume of somebody else": {"runs write": (ERROR, "user 10001 must be able to write")},
    "no POD_IP": {"POD_IP": (ERROR, "status.podIP"), "probes": (ERROR, "neither answers")},
    "a POD_IP of another pod": {
        "interface for Gloo": (ERROR, "addresses must not be translated"),
        "probes": (ERROR, "neither answers"),
    },
    "another network towards the driver": {
        "address towards the driver": (ERROR, "others are told 10.9.8.7"),
        "driver's page, TCP 18080": (ERROR, "no answer: NetworkPolicy"),
    },
    "no name server": {"name train-driver": (ERROR, "port 53 out")},
    "no such driver": {"name train-driver": (ERROR, "there is no driver")},
    "two drivers": {
        "name train-driver": (NOTE, "only one driver"),
        "driver's ear for agents, UDP 19389": (ERROR, "nobody listens there"),
    },
    "a driver that has ended": {
        "driver's page, TCP 18080": (ERROR, "nobody listens there"),
        "driver's ear for agents, UDP 19389": (ERROR, "nobody listens there"),
    },
    "a network that lets nothing through": {
        "driver's page, TCP 18080": (ERROR, "no answer: NetworkPolicy"),
    },
    "neither agent nor driver here": {
        "driver's ear for agents, UDP 19389": (ERROR, "nobody listens there"),
        "probes": (ERROR, "neither answers"),
    },
    "an agent that fails": {
        "driver's ear for agents, UDP 19389": (ERROR, "nobody listens there"),
        "probes": (ERROR, "neither answers"),
    },
    "a sidecar": {"sidecar": (ERROR, "keep it out")},
    "threads of the node": {"cores": (NOTE, "torch counts the")},
    "a wrong number of threads": {"cores": (NOTE, "torch counts the")},
    "more threads than cores": {"cores": (NOTE, "set it to 1: more threads than cores")},
    "an image that asks for all GPUs": {"GPUs": (NOTE, "nvidia.com/gpu in its limits")},
}
"""Case to what is to be done: name of the line to whether it stops training, and its words."""


@pytest.fixture(scope="module")
def pods(tmp_path_factory):
    """The findings of all cases, in one process with mounts and networks of its own."""
    folder = tmp_path_factory.mktemp("pod")
    folder.chmod(0o755)
    for parent in folder.parents:  # the user of the image must come through
        if parent.stat().st_mode & 0o005 == 0o005:
            break
        parent.chmod(0o755)
    done = subprocess.run(
        ["unshare", "--mount", "--net", sys.executable, "-m", "tests.pod.pod_rig"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), python_path()])},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return {
        case: [PodFinding(**one) for one in found]
        for case, found in json.loads(done.stdout).items()
    }


@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts and networks")
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_a_pod_is_found(pods, case):
    """That and nothing else; each line with what to do."""
    problems = {one.what: one for one in pods[case] if one.to_do}
    ignored = set() if case.startswith("memory") else {"memory"}  # this machine is no pod
    assert problems.keys() - ignored == EXPECTED[case].keys()
    for what, (stops_training, words) in EXPECTED[case].items():
        assert words in problems[what].to_do, problems[what]
        assert problems[what].stops_training is stops_training, problems[what]


STRANGE_ADDRESSES = [
    "10.0.0.1 ",
    "\udcff",
    "a" * 70,
    "x\ny",
    "\x1b[31m",
    "a..b",
    "10.0.0.1:80",
    "::1",
]


@pytest.mark.parametrize("address", STRANGE_ADDRESSES)
def test_an_address_that_is_none_is_one_finding(monkeypatch, address):
    """Whatever it is; what asks the pod's probes asks at the loopback then."""
    monkeypatch.setitem(os.environ, "POD_IP", address)
    (found,) = network.address_findings(places_of("train"))
    assert (found.what, found.found, found.stops_training) == ("POD_IP", f"found {address!r}", True)
    assert found.to_do.startswith("must be an IPv4 address")
    assert network.probe_finding(places_of("train")).what == "probes"


GPUS = {
    "none": ("", 0, 0, ""),
    "hidden": ("void", 0, 0, ""),
    "as granted": ("GPU-a,GPU-b", 2, 2, ""),
    "by CDI": ("void", 2, 2, ""),
    "one is lost": ("GPU-a,GPU-b", 1, 1, "2 were granted: the node's driver or device plugin"),
    "all are lost": ("GPU-a", 0, 0, "1 were granted: the node's driver or device plugin"),
    "torch without CUDA": ("GPU-a", 1, 0, "not built for CUDA"),
    "chosen by nobody": ("all", 8, 8, "no device plugin has chosen them"),
    "asked for all, got none": ("all", 0, 0, "got none"),
}
"""NVIDIA_VISIBLE_DEVICES, what NVML sees, what torch can use, and what is to be done."""


@pytest.mark.parametrize(("variable", "seen", "usable", "words"), GPUS.values(), ids=GPUS)
def test_gpus_that_are_not_what_was_granted_are_found(monkeypatch, variable, seen, usable, words):
    """And torch, which takes seconds, is asked only where there is one."""
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", variable)
    monkeypatch.setattr(resources, "gpus", lambda: [SimpleNamespace(is_mig=False)] * seen)
    asked = []
    found = gpu_finding(lambda: asked.append(1) or ["GPU"] * usable)
    assert words in found.to_do
    assert bool(found.to_do) is bool(words)
    assert found.stops_training is ("granted" in words or "CUDA" in words)
    is_there = seen or variable not in ("", "void", "all")
    assert len(asked) == bool(is_there)


DIVIDED = {
    "two parts of one": ("MIG-a,MIG-b", [2], 1, ""),
    "a part of each of two": ("MIG-a,MIG-b", [1, 1], 1, ""),
    "by CDI": ("void", [2], 1, ""),
    "one is lost": ("MIG-a,MIG-b", [1], 1, "2 were granted"),
    "divided, but no part": ("MIG-a", [0], 0, "1 were granted"),
    "torch without CUDA": ("MIG-a,MIG-b", [2], 0, "not built for CUDA"),
}
"""NVIDIA_VISIBLE_DEVICES, parts of each GPU, what torch can use, which is one part at most."""


@pytest.mark.parametrize(("variable", "parts", "usable", "words"), DIVIDED.values(), ids=DIVIDED)
def test_parts_of_gpus_are_counted_as_granted(monkeypatch, variable, parts, usable, words):
    """Each for itself, as the device plugin grants them."""
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", variable)
    cards = [SimpleNamespace(is_mig=True, mig_devices=(None,) * number) for number in parts]
    monkeypatch.setattr(resources, "gpus", lambda: cards)
    found = gpu_finding(lambda: ["GPU"] * usable)
    assert words in found.to_do
    assert found.stops_training is bool(words) is bool(found.to_do)


@pytest.mark.parametrize(
    ("cores", "threads", "num_workers", "words"),
    [
        (8.0, "8", 1, ""),
        (8.0, "2", 4, ""),
        (8.0, "8", 4, "set it to 2"),
        (0.5, "1", 1, ""),
        (2.0, "1", 4, ""),
        (3.5, "4", 1, "set it to 3"),
        (2.0, 5000 * "9", 1, "set it to 2"),
        (2.0, "²", 1, "set it to 2"),
        (2.0, "0", 1, "set it to 2"),
    ],
)
def test_the_threads_of_all_workers_fit_the_cores(monkeypatch, cores, threads, num_workers, words):
    """At least one each, however few the cores are."""
    monkeypatch.setattr(resources, "allowed_cores", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert core_finding(num_workers).to_do.startswith(words)
    assert bool(core_finding(num_workers).to_do) is bool(words)


def test_the_command_prints_a_line_for_each(capsys, monkeypatch):
    """Outside of a pod nearly all is wrong, which is exit code 1; the folders are those of one."""
    monkeypatch.delenv("POD_IP", raising=False)
    assert main(["doctor", "--kubernetes", "digits", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["can_train"] is False
    whats = [one["what"] for one in found["findings"]]
    assert whats[:2] == list(places_of("digits").keys)
    assert "name digits-driver" in whats
    assert main(["doctor", "--kubernetes"]) == 1
    said = capsys.readouterr().out
    assert "ERROR" in said
    assert said.endswith("This pod cannot take part.\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--kubernetes", ""], "--kubernetes: found '', must be small letters"),
        (["--kubernetes="], "--kubernetes: found '', must be small letters"),
        (["--kubernetes", "", "-f", "x"], "--kubernetes looks at this pod, -f at the nodes"),
        (["--kubernetes", "A/b"], "--kubernetes: found 'A/b', must be small letters"),
        (["--kubernetes", "a", "-f", "x"], "--kubernetes looks at this pod, -f at the nodes"),
    ],
)
def test_wrong_words_are_one_line(capsys, words, line):
    """With exit code 2."""
    assert main(["doctor", *words]) == 2
    assert capsys.readouterr().err.startswith(f"hetero-hvd: {line}")
