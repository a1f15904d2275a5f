"""A machine with two GPUs that are not there."""

import json
import subprocess
import sys

import pytest

from tests.fake_nvml.library import build, environment


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory):
    """Folder of the stand-in for the driver's library; see tests/fake_nvml/nvml.c."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def with_gpus(fake_nvml):
    """Run a piece of Python on such a machine; gives what it leaves in `found`."""

    def run(code, mode=""):
        done = subprocess.run(
            [sys.executable, "-c", f"import json\n{code}\nprint(json.dumps(found))"],
            env=environment(fake_nvml, mode),
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout)

    return run
