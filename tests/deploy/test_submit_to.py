"""`hetero-hvd submit --to`: what each option is for Slurm and for Kueue, or why it is nothing."""

from __future__ import annotations

import base64
import functools
import io
import itertools
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from hetero_hvd.cli import main
from tests.deploy.test_kubernetes import VERSIONS, make_pods, of_kind, on_free_ports

IMAGE = f"registry.example/h@sha256:{'a' * 64}"
TARGETS = {"slurm": (), "kubernetes": ("--image", IMAGE)}
DRIVER, AGENTS = "driver", "agents"
SCRIPT = Path(__file__).with_name("train.py")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a script; `sbatch` is a program that writes down how it was called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/sbatch.txt\necho 7\n')
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "train.py")
    monkeypatch.chdir(folder)
    return folder


def submitted(target, *options, command=("train.py", "3")):
    """The exit code of the command."""
    return main(["submit", "--to", target, *TARGETS[target], *options, "--", *command])


def texts(folder):
    """What driver and agents are told, by which of them; what is folded in YAML is one line."""
    found = {}
    for path in sorted(folder.glob("*.sh")) + sorted(folder.glob("*.yaml")):
        part = AGENTS if path.name.startswith(AGENTS) else DRIVER
        found[part] = found.get(part, "") + path.read_text()
    return found


LABEL = "kueue.x-k8s.io"
MAPPED = {
    "nothing": (
        (),
        {DRIVER: ("--min-np=1 --max-np=1 ",), AGENTS: ("--array=1-1%1 --gpus=1",)},
        {DRIVER: (f"{LABEL}/queue-name: default", "--max-np=1"), AGENTS: ("replicas: 1", "gpu: ")},
    ),
    "a pool": (
        ("--pool", "prod"),
        {DRIVER: ("--partition=prod",), AGENTS: ("--partition=prod",)},
        {DRIVER: (f"{LABEL}/queue-name: prod",), AGENTS: (f"{LABEL}/queue-name: prod",)},
    ),
    "a priority": (
        ("--priority", "low"),
        {DRIVER: ("--qos=low",), AGENTS: ("--qos=low",)},
        {DRIVER: (f"{LABEL}/priority-class: low",), AGENTS: (f"{LABEL}/priority-class: low",)},
    ),
    "devices": (
        ("--min", "2", "--max", "4"),
        {DRIVER: ("--min-np=2 --max-np=4",), AGENTS: ("--array=1-4%4",)},
        {DRIVER: ("--min-np=2", "--max-np=4"), AGENTS: ("replicas: 4",)},
    ),
    "a kind": (
        ("--needs", "kind==v100"),
        {AGENTS: ("--gpus=v100:1",)},
        {AGENTS: ("key: nvidia.com/gpu.product", "operator: In", "- v100")},
    ),
    "another kind": (
        ("--needs", "kind!=t4"),
        "--needs kind!=t4: not with --to slurm: Slurm takes the kind that there is to be",
        {AGENTS: ("key: nvidia.com/gpu.product", "operator: NotIn", "- t4")},
    ),
    "no GPU": (
        ("--needs", "kind==cpu"),
        {AGENTS: ("--array=1-1%1\n",)},
        {AGENTS: ("name: train-1-cpu", "replicas: 1", "NVIDIA_VISIBLE_DEVICES")},
    ),
    "memory": (
        ("--needs", "memory>=16GiB"),
        "--needs memory>=16GiB: not with --to slurm: Slurm does not know the memory of devices",
        {AGENTS: ("key: nvidia.com/gpu.memory", "operator: Gt", '- "16383"')},
    ),
    "less memory": (
        ("--needs", "memory<16GiB"),
        "--needs memory<16GiB: not with --to slurm: Slurm does not know the memory of devices",
        {AGENTS: ("operator: Lt", '- "16384"')},
    ),
    "a node": (
        ("--needs", "node==alpha"),
        {AGENTS: ("--nodelist=alpha",)},
        {AGENTS: ("key: kubernetes.io/hostname", "operator: In", "- alpha")},
    ),
    "not a node": (
        ("--needs", "node!=alpha"),
        {AGENTS: ("--exclude=alpha",)},
        {AGENTS: ("operator: NotIn", "- alpha")},
    ),
    "two kinds": (
        ("--needs", "kind==a", "--needs", "kind==b"),
        "--needs kind==b: not with --to slurm: a device is of one kind only",
        {AGENTS: ("- a", "- b")},
    ),
    "memory of no GPU": (
        ("--needs", "kind==cpu", "--needs", "memory>1MB"),
        "--needs memory>1MB: not with --to slurm: ",
        "--needs memory>1MB: not with --to kubernetes: what has no GPU has no label",
    ),
    "retries": (
        ("--retries", "0"),
        "--retries: not with --to slurm: Slurm starts again",
        {DRIVER: ("backoffLimit: 0",)},
    ),
    "a time limit": (
        ("--time-limit", "90m"),
        "--time-limit: not with --to slurm: Slurm's limit is of one start",
        {DRIVER: ("activeDeadlineSeconds: 5400",)},
    ),
    "after others": (
        ("--after", "4-5"),
        {DRIVER: ("--dependency=singleton,afterok:4,afterok:5",)},
        "--after: not with --to kubernetes: a Job waits for no other one",
    ),
    "a setting": (
        ("--no-balance", "--checkpoint-seconds", "5"),
        {DRIVER: ("--no-balance --checkpoint-seconds=5",)},
        {DRIVER: ('"--no-balance"', '"--checkpoint-seconds=5"')},
    ),
    "a wrong setting": (
        ("--checkpoint-seconds", "soon"),
        "settings: checkpoint_seconds: found 'soon', must be ",
        "settings: checkpoint_seconds: found 'soon', must be ",
    ),
    "a store": (
        ("--checkpoint-url", "s3://a/b"),
        {DRIVER: ("--checkpoint-url=s3://a/b",)},
        {DRIVER: ("s3://a/b", "port: 443")},
    ),
    "a decided setting": (
        ("--listen", "4000"),
        "--listen: not with --to slurm: follows from where",
        "--listen: not with --to kubernetes: follows from where",
    ),
    "of sbatch": (
        ("--sbatch", "--account=a -t9"),
        {DRIVER: ("--account=a -t9",), AGENTS: ("--account=a -t9",)},
        "--sbatch: not with --to kubernetes: is of --to slurm",
    ),
    "devices of sbatch": (
        ("--sbatch=--gres=gpu:2",),
        "--sbatch: found '--gres=gpu:2': devices are said by --max and --needs",
        "--sbatch: not with --to kubernetes: is of --to slurm",
    ),
    "ours of sbatch": (
        ("--sbatch", "-d after:3"),
        "--sbatch: found '-d', an option of sbatch that hetero-hvd gives itself",
        "--sbatch: not with --to kubernetes",
    ),
    "a deadline": (
        ("--deadline", "3h"),
        "--deadline: not with --to slurm: ",
        "--deadline: not with --to kubernetes: ",
    ),
    "a program": (
        ("--devices", "1"),
        "--devices: not with --to slurm: ",
        "--devices: not with --to kubernetes: ",
    ),
    "idleness": (
        ("--idle-limit", "3h"),
        "--idle-limit: not with --to slurm: ",
        "--idle-limit: not with --to kubernetes: ",
    ),
    "an array": (
        ("--array", "1-3"),
        "--array: not with --to slurm: ",
        "--array: not with --to kubernetes: ",
    ),
    "trials": (
        ("--trials", "a"),
        "--trials: not with --to slurm: is of our own queue",
        "--trials: not with --to kubernetes: is of our own queue",
    ),
    "a socket": (
        ("--socket", "a"),
        "--socket: not with --to slurm: ",
        "--socket: not with --to kubernetes: ",
    ),
    "an image without a digest": (
        ("--image", "h:1"),
        "--image: not with --to slurm: ",
        "--image: found 'h:1', must be NAME@sha256:DIGEST",
    ),
    "a wrong pool": (
        ("--pool", "a b"),
        "--pool: found '--partition=a b', must have no blank",
        "--pool: found 'a b', must be small letters",
    ),
    "a wrong folder": (
        ("--folder", "A_b"),
        "--folder: found 'A_b', must be small letters",
        "--folder: found 'A_b', must be small letters",
    ),
    "too many": (
        ("--max", "1025"),
        "--max: found '1025', must be an integer from 1 to 1024",
        "--max: found '1025', must be an integer from 1 to 1024",
    ),
}
"""Options of `submit`; then for Slurm and for Kubernetes what driver and agents are told, or in one
line why there is nothing for it."""

CASES = list(itertools.product(MAPPED, TARGETS))


@pytest.mark.parametrize(("case", "target"), CASES)
def test_each_option_is_mapped_or_refused_by_its_name(place, capsys, case, target):
    """What is refused leaves nothing behind, and Slurm is not asked."""
    options, *expected = MAPPED[case]
    told = expected[list(TARGETS).index(target)]
    code = submitted(target, *options)
    printed = capsys.readouterr()
    if isinstance(told, str):
        assert code == 2
        assert re.fullmatch(f"hetero-hvd: {re.escape(told)}.*\n", printed.err), printed.err
        assert [path.name for path in place.iterdir()] == ["train.py"]
        assert not (place.parent / "sbatch.txt").exists()
        return
    assert code == 0, printed.err
    found = texts(place / "submitted" / "train-1")
    for part, words in told.items():
        for word in words:
            assert word in found[part]
    if target == "slurm":
        assert printed.out == "job 7 of Slurm\n"
        called = (place.parent / "sbatch.txt").read_text()
        folder = place / "submitted" / "train-1"
        tested, given = f"--test-only {folder}/agents-devices.sh", f"--parsable {folder}/driver.sh"
        assert called == f"{tested}\n{given}\n"


def test_every_option_is_in_the_table():
    """Those of `submit` itself; of settings, one of each kind is."""
    import argparse  # noqa: PLC0415

    from hetero_hvd.cli.queue import submit  # noqa: PLC0415 - beside its parser

    parser = argparse.ArgumentParser(add_help=False)
    submit.add_arguments(parser)
    own = {
        flag
        for group in parser._action_groups
        if not (group.title or "").startswith("settings")
        for action in group._group_actions
        for flag in action.option_strings
    }
    tried = {word for options, *_ in MAPPED.values() for word in options if word.startswith("--")}
    assert own - tried == {"--to"}


def test_what_was_submitted_is_what_runs(place):
    """Files, arguments and settings as they were; folders of jobs are no part of the next one."""
    (place / "data").mkdir()
    (place / "data" / "a.txt").write_text("as it was")
    for number, target in ((1, "slurm"), (2, "kubernetes")):
        assert submitted(target) == 0
        (place / "data" / "a.txt").write_text(f"edited {number}")
    tree = place / "submitted" / "train-1" / "tree"
    assert (tree / "data" / "a.txt").read_text() == "as it was"
    assert f"cd {tree} || exit 2" in (tree.parent / "driver.sh").read_text()
    config = yaml.safe_load((place / "submitted" / "train-2" / "config.yaml").read_text())
    assert config["immutable"]
    packed = base64.b64decode(config["binaryData"]["tree.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert sorted(archive.getnames()) == ["data/a.txt", "train.py"]
        assert archive.extractfile("data/a.txt").read() == b"edited 1"
    subprocess.run(["git", "init", "-q", "."], check=True)
    listed = ["git", "ls-files", "-o", "--exclude-standard"]
    found = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    assert found.splitlines() == ["data/a.txt", "train.py"]


def documents(folder):
    """All manifests of a folder."""
    texts = (path.read_text() for path in sorted(folder.glob("*.yaml")))
    return list(itertools.chain(*map(yaml.safe_load_all, texts)))


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(place, monkeypatch, version):
    """By the schemas of Kubernetes, strictly; labels are such as Kueue reads."""
    read_once = functools.cache(kubernetes_validate.utils.schema_contents)
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", read_once)
    options = ("--priority", "high", "--needs", "memory>=16GiB", "--time-limit", "1h")
    assert submitted("kubernetes", *options, "--max", "2") == 0
    found = documents(place / "submitted" / "train-1")
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)
    queued = {
        document["kind"]: document["metadata"]["labels"]
        for document in found
        if f"{LABEL}/queue-name" in document["metadata"]["labels"]
    }
    assert sorted(queued) == ["Deployment", "Job"]
    (job,) = of_kind(found, "Job")
    assert job["spec"]["suspend"]  # until Kueue admits it


@pytest.mark.process
def test_the_commands_train_as_local_processes(place, tmp_path):
    """Driver and agent unpack what was submitted, though it is edited; the job ends 0."""
    assert submitted("kubernetes", "--needs", "kind==cpu", command=("train.py", "3", "$(A)")) == 0
    (place / "train.py").write_text("raise RuntimeError('edited')\n")
    found = documents(place / "submitted" / "train-1")
    renamed = yaml.safe_load(yaml.safe_dump(found).replace("train-1", "train"))
    pods = make_pods(tmp_path, on_free_ports(renamed), 1, {})
    try:
        for pod in pods.values():
            pod.start()
        driver, agent = pods["train-driver"], pods["train-cpu"]
        assert driver.process.wait(100) == 0, driver.said() + agent.said()
        assert "was told ['$(A)']" in driver.said()
        assert agent.stop() == 0
    finally:
        for pod in pods.values():
            pod.kill()
