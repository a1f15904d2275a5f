"""Batch scripts for Slurm: whole, closed, and as sbatch and the shell read them."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys

import pytest
import yaml

from hetero_hvd.agent import service
from hetero_hvd.cli import main
from hetero_hvd.deploy.slurm import TAKEN, TAKEN_LETTERS, AgentPool, read_pool
from hetero_hvd.slurm.agent_jobs import AgentJobs

POOL = ("--pool", "gpu:4%2:-C a100 --gpus=2")
ODD = ("train.py", "a b", "'\"", "$HOME", "$(id)", "`id`", "\\", "", "ä", "-x", "*", "a\nb")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """With a blank in its path."""
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def written(*flags, command=("train.py",)):
    """Exit code of the command."""
    return main(["deploy", "slurm", "d", *flags, "--", *command])


def directives(text):
    """The options of a batch script, as sbatch parts them."""
    lines = re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)
    return [word for line in lines for word in shlex.split(line)]


def test_all_that_is_named_is_there_and_keys_are_closed(place, capsys):
    """The scripts name files of the folder by the paths that all nodes know."""
    assert written(*POOL, "--pool", "cpu:1") == 0
    folder = place / "d"
    said = capsys.readouterr().out
    assert f"{folder / 'keys/cluster.key'}\n" in said
    assert said.endswith(f"next:\n  sh {folder / 'submit.sh'}\n")
    assert stat.S_IMODE((folder / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "keys" / "cluster.key").stat().st_mode) == 0o600
    assert AgentJobs(folder, {}).pools.keys() == {"cpu", "gpu"}
    key = (folder / "keys" / "cluster.key").read_text().strip()
    for name in ("driver.sh", "agents-cpu.sh", "agents-gpu.sh"):
        text = (folder / name).read_text()
        assert key not in text
        options = directives(text)
        assert {"--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append"} < set(options)
        (output,) = (word for word in options if word.startswith("--output="))
        assert output.startswith(f"--output={folder}/logs/")
        assert subprocess.run(["sh", "-n", folder / name], check=False).returncode == 0
    settings = yaml.safe_load((folder / "nodes.yaml").read_text())["job"]
    assert settings["cluster_key_file"] == str(folder / "keys" / "cluster.key")


def test_the_agents_of_a_pool_are_an_array_with_a_cap(place):
    """With the user's options, and their own part in each name."""
    assert written(*POOL, "--pool", "cpu:3:--time=2:00:00 -p long", "--name", "bert") == 0
    gpu, cpu = (directives((place / "d" / f"agents-{p}.sh").read_text()) for p in ("gpu", "cpu"))
    assert {"--job-name=bert-gpu", "--array=1-4%2", "-C", "a100", "--gpus=2"} < set(gpu)
    assert {"--job-name=bert-cpu", "--array=1-3%3", "--time=2:00:00", "-p", "long"} < set(cpu)
    assert next(word for word in gpu if "output" in word).endswith("logs/gpu-%a.txt")


def test_a_folder_has_one_driver_at_a_time(place):
    """A second one waits for the end of the first; the drivers of other folders do not."""
    assert written(*POOL) == 0
    assert main(["deploy", "slurm", "e", *POOL, "--", "train.py"]) == 0
    options = [set(directives((place / d / "driver.sh").read_text())) for d in ("d", "e")]
    assert all("--dependency=singleton" in words for words in options)
    names = [word for words in options for word in words if word.startswith("--job-name=")]
    assert len(set(names)) == 2
    assert all(name.startswith("--job-name=train-driver-") for name in names)


def words_of(place, script, **environment):
    """What a script runs, with its variables: a program in the interpreter's place says it."""
    program = place / "python"
    say = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -Ic {shlex.quote(say)} "$@"\n')
    program.chmod(0o755)
    assert written(*POOL, "--force", "--python", str(program), command=ODD) == 0
    done = subprocess.run(
        ["sh", f"d/{script}"],
        env={"PATH": os.defpath, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_whatever_stands_after_the_dashes_reaches_the_script(place):
    """The shell takes no word for something else."""
    words, _ = words_of(place, "driver.sh")
    start = ["-m", "hetero_hvd", "run", "--slurm-agents", str(place / "d"), "--"]
    assert words == [*start, *ODD]


GRANTED = {
    "none": ({}, ""),
    "two": ({"CUDA_VISIBLE_DEVICES": "2,3"}, "2,3"),
    "another maker's": ({"ROCR_VISIBLE_DEVICES": "0"}, None),
    "tiles": ({"ZE_AFFINITY_MASK": "0"}, None),
}


@pytest.mark.parametrize("case", GRANTED)
def test_an_agent_uses_what_is_granted(place, case):
    """None where no GPU is, also where nothing else keeps a job from them."""
    given, expected = GRANTED[case]
    _, environment = words_of(place, "agents-gpu.sh", **given)
    assert environment.get("CUDA_VISIBLE_DEVICES") == expected


def test_slurms_patience_is_longer_than_an_agent_takes():
    """KillWait is 30 s, unless it was changed."""
    assert service.GOODBYE_SECONDS + service.LEAVE_SECONDS + 10 < 30


def test_another_choice_of_pools_leaves_no_script_of_the_earlier_one(place):
    """With --force; the key stays, which agents that run hold."""
    assert written(*POOL, "--pool", "cpu:1") == 0
    key = (place / "d" / "keys" / "cluster.key").read_text()
    assert written("--pool", "new:1", "--force") == 0
    assert {path.name for path in (place / "d").glob("agents-*")} == {"agents-new.sh"}
    assert (place / "d" / "keys" / "cluster.key").read_text() == key


POOLS = {
    "gpu:4": AgentPool(name="gpu", number=4, most=4),
    "gpu:4%1": AgentPool(name="gpu", number=4, most=1),
    "gpu:1:-p a": AgentPool(name="gpu", number=1, most=1, options=("-p", "a")),
    "g:2:--gres=gpu:a100:2 --time=1:00": AgentPool(
        name="g", number=2, most=2, options=("--gres=gpu:a100:2", "--time=1:00")
    ),
    "g:2:--constraint=[a|b]&c*2": AgentPool(
        name="g", number=2, most=2, options=("--constraint=[a|b]&c*2",)
    ),
    "g:2%2:": AgentPool(name="g", number=2, most=2),
}


@pytest.mark.parametrize("text", POOLS)
def test_what_a_pool_says(text):
    """Colons and signs of Slurm's own are left to Slurm."""
    assert read_pool(text) == POOLS[text]


SHORT = tuple(f"{letter}{value}" for letter in TAKEN_LETTERS for value in ("", "2"))
WRONG = {
    "--pool": (
        *("", "gpu", ":", "gpu:", "gpu:x", "gpu:0", "gpu:1025", "gpu:-1", "gpu:2%", "gpu:2%3"),
        *("gpu:2%0", "GPU:1", "1:1", "a b:1", "a_b:1", f"{'a' * 21}:1", "driver:1", "gpu:1:a100"),
        *("gpu:1:--comment='a b'", "gpu:1:-p '", "gpu:1:-p $HOME", "gpu:1:-p a#b"),
        *("gpu:1:-p a\n#SBATCH -N2", "gpu:1:-p `id`", "gpu:1:-p ä"),
        *(f"gpu:1:{option}=1" for option in TAKEN),
        *(f"gpu:1:-p a {option}" for option in (*SHORT, "-HN2", "--arr=1-2", "--out=a")),
    ),
    "--name": ("", "Train", "a_b", 41 * "a"),
    "--driver": (
        *("a100", "-N2", "--array=1-2", "-p 'a b'"),
        *("--dependency=after:3", "--dep=after:3", "-d after:3", "-dafter:3", "-Hdsingleton"),
    ),
    "--leave-seconds": ("", "-1", "1.5", "soon", "86401"),
    "--leave-stagger-seconds": ("", "-1", "x", "86401"),
    "--idle-minutes": ("", "0", "-1", "43201", "1.5"),
    "--python": ("", "python", "./python", "env/bin/python", "/a\udcff/python"),
}
CASES = [(flag, value) for flag, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("flag", "value"), CASES, ids=lambda value: value[:24])
def test_a_wrong_value_is_one_line_that_names_it(place, capsys, flag, value):
    """Before anything is written."""
    pool = () if flag == "--pool" else POOL
    assert written(*pool, f"{flag}={value}") == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    words = line.removeprefix("hetero-hvd: ").removeprefix("argument ")  # argparse refuses no path
    assert words.startswith(flag)
    assert printed.out == ""
    assert not (place / "d").exists()


@pytest.mark.parametrize("command", ["nofile.py", "nofile"])
def test_a_script_that_is_not_there_yet_is_a_note(place, capsys, command):
    """It may be written later; but nobody waits in a queue for a typo without having been told."""
    assert written(*POOL, command=(command,)) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"note: {command}: no such (file|program) in {place}, where", line)
    (place / "there.py").touch()
    assert written(*POOL, "--force", command=("there.py",)) == 0
    assert capsys.readouterr().err == ""


MISUSES = {
    "an option as the script": (["d", *POOL, "--", "-m", "a"], "after -- comes a script"),
    "no pool": (["d", "--", "train.py"], "--pool is missing"),
    "no command": (["d", *POOL], "no command: hetero-hvd deploy slurm DIR [options] -- train.py"),
    "no folder": (["train.py", *POOL, "--", "train.py"], "{place}/train.py: cannot be used"),
    "a full folder": (["full", *POOL, "--", "train.py"], "{place}/full: is not empty"),
    "a pool twice": (["d", *POOL, *POOL, "--", "a"], "--pool gpu: another job has this name"),
    "a quote in the path": (['d"', *POOL, "--", "a"], "DIR: found"),
    "a sign of Slurm's in the path": (["d%j", *POOL, "--", "a"], "DIR: found"),
    "two lines in the path": (["d\n", *POOL, "--", "a"], "DIR: found"),
    "no text": (["d", *POOL, "--", "b\udcff.py"], "after --: 'b\\udcff.py' must be text"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_misuse_is_one_line(place, capsys, case):
    """With what is missing, or in the way."""
    words, expected = MISUSES[case]
    (place / "train.py").touch()
    (place / "full").mkdir()
    (place / "full" / "mine").touch()
    assert main(["deploy", "slurm", *words]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"hetero-hvd: {expected.format(place=place)}")
    assert sorted(path.name for path in place.iterdir()) == ["full", "train.py"]
