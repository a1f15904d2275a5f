"""The image's recipe, as far as it can be judged without building it."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys

import pytest

from hetero_hvd import __version__
from hetero_hvd.deploy.kubernetes.options import RUNS, USER_ID, WORKSPACE
from tests.kit.checkout import CHECKOUT

FILE = CHECKOUT / "hetero_hvd" / "deploy" / "Dockerfile"
LINES = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", "")
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES.splitlines() if line.strip()]
LAST = INSTRUCTIONS[[name for name, _ in INSTRUCTIONS].index("FROM", 3) :]


def of(name, instructions=INSTRUCTIONS):
    """What stands after each instruction of a name."""
    return [words for found, words in instructions if found == name]


def without_mounts(line):
    """What the shell gets of a RUN line."""
    return re.sub(r"^(--mount=\S+\s+)*", "", line)


def copied():
    """Paths of the checkout that are copied."""
    return [
        path
        for words in of("COPY")
        if not words.startswith("--from")
        for path in words.split()[:-1]
    ]


def test_the_image_runs_as_the_manifests_say():
    """The user, its folders, and the signal at which all of our processes leave in order."""
    assert of("USER", LAST) == [f"{USER_ID}:{USER_ID}"]
    assert of("WORKDIR", LAST) == [WORKSPACE]
    assert of("STOPSIGNAL", LAST) == ["SIGTERM"]
    assert f"{WORKSPACE} {RUNS}" in of("RUN", LAST)[0]
    assert str(USER_ID) in of("RUN", LAST)[0]


def test_what_is_copied_is_in_the_checkout_and_let_through():
    """By the list beside the file, which keeps everything else out."""
    rules = FILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert "*" in rules
    assert set(copied()) == allowed
    assert all((CHECKOUT / path).exists() for path in copied())
    assert not any(fnmatch.fnmatch(path, "*.key") for path in copied())


def test_what_is_copied_is_all_that_the_build_reads(tmp_path):
    """The set-up's stamp and setup.py find their files."""
    for path in copied():
        source, target = CHECKOUT / path, tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, target)
    version = [sys.executable, "setup.py", "--version"]
    said = subprocess.check_output(version, cwd=tmp_path, text=True, stderr=subprocess.DEVNULL)
    assert said.split()[-1] == __version__
    stamp = re.search(
        r"\$\(cat (setup\.py .*?) \| cksum\)", (tmp_path / "scripts/setup").read_text(), re.DOTALL
    )
    files = stamp[1].replace("\\\n", " ")
    subprocess.run(["sh", "-ec", f"cat {files} >/dev/null"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("line", of("RUN"))
def test_each_line_is_one_of_the_shell(line):
    """`sh -n` reads it."""
    subprocess.run(["sh", "-nc", without_mounts(line)], check=True)


@pytest.mark.parametrize(("given", "index"), [("http://host/cpu", "http://host/cpu"), ("", "none")])
def test_the_argument_chooses_torch(tmp_path, given, index):
    """And a set-up that fails ends the build."""
    (line,) = (line for line in of("RUN") if "TORCH" in line)
    (tmp_path / "scripts").mkdir()
    setup = tmp_path / "scripts" / "setup"
    setup.write_text('#!/bin/sh\necho "$@ ${PIP_EXTRA_INDEX_URL:-none}"\n[ "$2" = none ]\n')
    setup.chmod(0o700)
    for gpu, expected in (("none", 0), ("nccl", 1)):
        done = subprocess.run(
            ["sh", "-c", without_mounts(line)],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "TORCH_INDEX": given, "GPU": gpu},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected
        assert index in done.stdout
