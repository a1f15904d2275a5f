"""Part `nccl`: a Horovod with NCCL is built and adds up on one card; never run among several."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from gpu_check.clusters import alone, far, train
from gpu_check.installing import OWN, make_environment, offline, pip
from gpu_check.packing import BUILD_TOOLS
from gpu_check.site import PART_SECONDS, PLACE, Check, CheckError, Figure, Site, Skipped, at_most
from gpu_check.training import TOLERANCE

VENV = PLACE / "venv-nccl"
HEADERS = ("/usr/include", "/usr/local/cuda/include", "/usr/local/include")
OF_TORCH = "import nvidia; print(*nvidia.__path__, sep=chr(10))"
CODE = """
import torch, horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((1000,), 3.0, device="cuda"), op=hvd.Sum)
assert total.is_cuda and total.eq(3.0).all()
print(hvd.nccl_built())
"""


def with_torch(site: Site) -> list[Path]:
    """Where NCCL's header is if it has come with torch."""
    log = PLACE / "nccl-headers.log"
    printed = site.run([site.python, "-c", OF_TORCH], log=log, expected_code=None)
    return [Path(line, "nccl", "include") for line in printed.splitlines()]


def build(site: Site) -> Figure:
    """Build it into a virtual environment of its own, and let one process add up on its card."""
    if shutil.which("nvcc") is None:
        raise Skipped("no nvcc on PATH")
    folders = [*map(Path, HEADERS), *with_torch(site)]
    if not any((folder / "nccl.h").is_file() for folder in folders):
        raise Skipped(f"no nccl.h in {', '.join(HEADERS)}, and none with torch")
    log = PLACE / "nccl.log"
    own = replace(site, python=make_environment(site, VENV, log))
    site.run([*pip(own), *OWN, *BUILD_TOOLS, "cloudpickle"], log=log, **offline())
    make = [own.python, "scripts/horovod/build_wheel.py", "--gpu", "nccl"]
    wheel = own.run(make, log=log, seconds=PART_SECONDS, **offline()).split()[-1]
    own.run([*pip(own), *OWN, wheel], log=log, **offline())
    version = own.run([own.python, "-c", CODE], log=log).split()[-1]
    if version == "0":
        raise CheckError("Horovod was built without NCCL all the same")
    return Figure(float(version), "NCCL_VERSION_CODE", {"wheel": Path(wheel).name})


def training(site: Site) -> Figure:
    """A job of one worker, with that Horovod: the parameters of one process on the CPU."""
    python = VENV / "bin" / "python"
    if not python.is_file():
        raise Skipped("there is no Horovod with NCCL")
    own = replace(site, python=str(python))
    run = train(own, "nccl-training", nodes=("card",))
    found = far(run, alone(site, "nccl-alone")["parameters"], ("card",))
    at_most(found, TOLERANCE, "difference of a parameter")
    said = [line for line in run.printed.splitlines() if "nccl" in line.lower()]
    return Figure(found, "largest difference", {"said": said[:3], "device": run.card["device"]})


CHECKS = {
    "one-card": Check(build, "Horovod with NCCL is built and adds up", needs_card=True),
    "training": Check(training, "a job of one card with that Horovod", needs_card=True),
}
