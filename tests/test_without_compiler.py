"""Whatever is asked of a stand-in loads the real module, whichever of them is asked first."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, os, sys, torch
import sitecustomize
loaded = [name for name, one in sys.modules.items() if isinstance(one, sitecustomize.Later)]
print("stand-ins:", *loaded)
names = [name for name in (*sitecustomize.OWN, *loaded) if name.startswith("torch.")]
for name in dict.fromkeys(names):
    if os.fork() == 0:
        module = importlib.import_module(name)
        vars(getattr(module, "real", lambda: module)())["__file__"]
        assert not isinstance(importlib.import_module(name), sitecustomize.Later)
        os._exit(0)
    if code := os.wait()[1]:
        print("cannot be asked first:", name)
    else:
        print("real:", name)
"""


@pytest.mark.matrix
def test_each_of_torchs_can_be_the_first():
    """They import each other in circles; a child of the process asks for each, ten in all."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=100
    )
    stand_ins, *others = done.stdout.splitlines()
    assert "torch.export" in stand_ins.split()
    assert len(others) > 10
    assert [line for line in others if not line.startswith("real: ")] == [], done.stderr
