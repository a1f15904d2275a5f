"""The integrations are optional, and say with what they were tested."""

import logging
import subprocess
import sys

import pytest

from hetero_hvd.integrations import packages

WITHOUT = """
import sys
from importlib import metadata
found = metadata.version
def version(name):
    if name in {missing!r}:
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.version = version
for name in {missing!r}:
    sys.modules[name] = None
import hetero_hvd
hetero_hvd.Trainer
try:
    import hetero_hvd.integrations.{name}
except hetero_hvd.UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("huggingface", ["transformers"]),
        ("huggingface", ["accelerate", "transformers"]),
        ("lightning", ["lightning"]),
    ],
)
def test_without_its_package_all_else_works(name, missing):
    """Our package and its trainer are there; the integration says in one line what it needs."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing, name=name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert f"pip install 'hetero_hvd[{name}]'" in line
    assert all(each in line for each in missing)


@pytest.mark.parametrize(
    ("found", "is_told"),
    [("5.23.0", False), ("5.23.7", False), ("5.2.3", True), ("5.230.0", True), ("6.0.0", True)],
)
def test_another_version_is_warned_of_once(monkeypatch, caplog, found, is_told):
    """By name, with the one that was tested; a correction of that one is as good."""
    given = {"transformers": found, "accelerate": "1.15.0"}
    monkeypatch.setattr(packages, "installed", given.get)
    needed = packages.Packages(
        "huggingface", "transformers.Trainer", {"transformers": "5.23", "accelerate": "1.15"}
    )
    with caplog.at_level(logging.WARNING):
        needed.warn()
        needed.warn()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == is_told
    assert all(f"transformers {found}" in line and "5.23" in line for line in said)
