"""A worker is not started on a processor that lacks what it would use."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hetero_hvd import supervisor
from hetero_hvd.core.numerics.cpu_capability import variables
from hetero_hvd.driver.output.signs import SignFilter
from hetero_hvd.exit_codes import EXIT_NO_PLACE, EXIT_UNFIT
from hetero_hvd.messages import NodeEquipped, NodeSampled
from hetero_hvd.probes.kernel.processes import DEAD
from hetero_hvd.probes.sampling.local_samples import read_sample
from hetero_hvd.probes.sampling.shared_folder import FOLDER_VARIABLE, SharedFolder
from tests.kit.checkout import variables as variables_of_checkout
from tests.leftovers import wait_until

OLD = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 sse4_1 avx\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n\n"
CODE = """
import sys
from pathlib import Path
from hetero_hvd import supervisor
supervisor.CPU_INFO = Path(sys.argv[1])
sys.exit(supervisor.main())
"""

LATE = """
import json, sys
from hetero_hvd.supervisor import start
start(json.loads(sys.argv[1])).wait()
"""


def supervise(folder, processor, environment):
    """Run a command on a machine with such a processor."""
    info = folder / "cpuinfo"
    info.write_text(processor)
    order = {
        "command": [sys.executable, "-c", "print('started')"],
        "directory": str(folder),
        "environment": dict(environment),
        "gpu": None,
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", CODE, str(info)]
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()  # its end would end the worker
        return process.wait(60), process.stdout.read(), process.stderr.read()


def test_a_worker_keeps_the_environment_with_which_it_was_started(tmp_path):
    """Whatever `hetero-hvd install` puts behind the link meanwhile."""
    (tmp_path / "venv-1" / "bin").mkdir(parents=True)
    (tmp_path / "venv").symlink_to("venv-1")
    (tmp_path / "venv-1" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "late.py").write_text("import sys; print(sys.executable)")
    order = {"command": ["late.py"], "directory": str(tmp_path), "environment": {}, "gpu": None}
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", LATE, json.dumps(order)],
        env=variables_of_checkout(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{tmp_path.resolve()}/venv-1/bin/python\n", done.stderr


@pytest.mark.parametrize(
    ("processor", "capability", "is_started"),
    [(OLD, "avx2", False), (OLD, "default", True), (OLD, "native", True), (ARM, "avx2", True)],
    ids=["no AVX2", "default", "native", "ARM"],
)
def test_an_old_processor_is_refused_by_name(tmp_path, processor, capability, is_started):
    """Before Python starts, with an exit code of its own: other nodes may do."""
    code, output, errors = supervise(tmp_path, processor, variables(capability))
    if is_started:
        assert (code, output) == (0, "started\n")
        return
    assert (code, output) == (EXIT_UNFIT, "")
    assert errors.strip() == (
        "cpu_capability=avx2: this processor has no avx2, fma: leave the node out, or train all of "
        "the run, from its first step on, with --cpu-capability default"
    )


HOLDER = """
import os, signal, time
from hetero_hvd.probes.kernel.life_lock import LIFE_LOCK_VARIABLE, hold_inherited
assert hold_inherited(os.environ[LIFE_LOCK_VARIABLE])
time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", '"$@"; true', "sh"]], ids=["itself", "shell"])
def test_a_supervisor_tells_that_its_worker_dies(tmp_path, wrapper):
    """In front of whatever it says at the end, and through a shell that has started it."""
    command = [*wrapper, sys.executable, "-c", HOLDER]
    order = {"command": command, "directory": str(tmp_path), "environment": {}, "gpu": None}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    own = [sys.executable, "-m", "hetero_hvd.supervisor"]

    def looks():
        with subprocess.Popen(own, env=variables_of_checkout(), **pipes) as process:
            process.stdin.write(f"{json.dumps(order)}\n".encode())
            process.stdin.flush()  # its end would end the worker
            output, signs = SignFilter().feed(process.stdout.read())
        assert (process.returncode, output) == (0 if wrapper else 137, b"")
        return signs.looks

    # With little memory the end may be noticed first on a busy machine: then once more.
    tries = (looks() for _ in range(5))
    assert next((found for found in tries if found), []) == [(DEAD, 0.0, 0.0)]


def test_a_supervisor_tells_of_its_node_when_asked(tmp_path):
    """Each second among the output of its worker, until that ends; then nothing of it is left."""
    order = {"command": ["sleep", "3"], "directory": str(tmp_path), "environment": {}, "gpu": None}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    own = os.environ | {FOLDER_VARIABLE: str(tmp_path / "own")}
    command = [sys.executable, "-m", "hetero_hvd.supervisor"]
    with subprocess.Popen(command, env=own, **pipes) as process:
        words = f"{json.dumps(order)}\nSAMPLE x\nSAMPLE 1\nSAMPLE 1\n"
        process.stdin.write(words.encode())
        process.stdin.flush()  # its end would end the worker
        output, signs = SignFilter().feed(process.stdout.read())
    assert (process.returncode, output) == (0, b"")
    told = [read_sample(sample) for sample in signs.samples]
    assert isinstance(told[0], NodeEquipped)
    assert len([sample for sample in told if isinstance(sample, NodeSampled)]) >= 2
    shared = SharedFolder(tmp_path / "own")
    wait_until(lambda: (lock := shared.try_to_lock()) and not os.close(lock), 5, "its lock")


VISIBLE = {
    "a machine": (8, 8, 8),
    "a machine whose device files nobody has asked for": (8, 0, 8),
    "a container of NVIDIA's runtime": (1, 1, 1),
    "a container with devices by CDI, on a node of 8": (8, 1, 1),
    "a container that does not see the driver's files": (0, 2, 2),
    "none": (0, 0, 0),
}
"""GPUs that the driver's files tell of, their device files, and how many can be used."""


@pytest.mark.parametrize(("listed", "files", "number"), VISIBLE.values(), ids=VISIBLE)
def test_gpus_are_those_that_a_process_can_open(tmp_path, monkeypatch, listed, files, number):
    """Whatever else of its node a container sees."""
    for index in range(listed):
        (tmp_path / "gpus" / f"0000:0{index}:00.0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{7 - index}" for index in range(files))):
        (tmp_path / "dev" / name).touch()
    monkeypatch.setattr(supervisor, "GPU_FOLDER", tmp_path / "gpus")
    monkeypatch.setattr(supervisor, "DEVICES", tmp_path / "dev")
    assert supervisor.visible_gpus({}) == [str(index) for index in range(number)]


LARGE = """
import re
from pathlib import Path
import torch
one = torch.ones(16 * 2**20)
for area in re.split("(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
    first, last = re.match("([0-9a-f]*)-?([0-9a-f]*)", area).groups()
    if area and int(first, 16) <= one.data_ptr() + one.nbytes // 2 < int(last, 16):
        print(" hg " in area + " ")
"""


@pytest.mark.skipif(not supervisor.HUGE_PAGES.exists(), reason="the kernel has none")
@pytest.mark.parametrize("given", [{}, {"THP_MEM_ALLOC_ENABLE": "0"}])
def test_large_tensors_get_huge_pages(given):
    """Unless the user wants none."""
    environment = supervisor.worker_environment({"environment": given, "gpu": None})
    command = [sys.executable, "-c", LARGE]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == f"{not given}\n"


STEP = """
import json, os, sys
from pathlib import Path
from hetero_hvd import supervisor
supervisor.GPU_FOLDER = supervisor.DEVICES = Path(sys.argv[1])
note = supervisor.show_granted_gpus_only()
order = {"environment": json.loads(sys.argv[2]), "gpu": 1}
given = supervisor.worker_environment(order).get("CUDA_VISIBLE_DEVICES")
print(json.dumps([len(supervisor.visible_gpus(dict(os.environ))), given, note]))
"""
NOTE = "note: Slurm has granted none of the 2 GPUs here: ask for them with --gpus-per-node"
GRANTED = {
    "two": ({"CUDA_VISIBLE_DEVICES": "1,0"}, {}, (2, "0", "")),
    "none": ({}, {}, (0, "", NOTE)),
    "none, as older versions say it": ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {}, (0, "", NOTE)),
    "none, in so many words": ({"CUDA_VISIBLE_DEVICES": ""}, {}, (0, "", "")),
    "of AMD": ({"ROCR_VISIBLE_DEVICES": "0"}, {}, (2, "1", "")),
    "of Intel": ({"ZE_AFFINITY_MASK": "0"}, {}, (2, "1", "")),
    "given by the user": ({}, {"CUDA_VISIBLE_DEVICES": "1"}, (0, "1", NOTE)),
}
"""What Slurm says, what nodes.yaml says; then the number, the worker's own, and what is noted."""


@pytest.mark.parametrize(("variables", "given", "found"), GRANTED.values(), ids=GRANTED)
def test_a_step_has_those_gpus_that_slurm_grants(tmp_path, variables, given, found):
    """A node's other GPUs are those of other jobs, even if nothing keeps a process from them."""
    for name in ("0000:01", "0000:02"):
        (tmp_path / name).mkdir()
    left = {k: v for k, v in os.environ.items() if not k.endswith(("DEVICES", "_MASK"))}
    words = [sys.executable, "-c", STEP, str(tmp_path), json.dumps(given)]
    done = subprocess.run(words, env=left | variables, capture_output=True, text=True, check=True)
    number, own, note = json.loads(done.stdout)
    assert (number, own) == found[:2]
    assert note.startswith(found[2])
    assert bool(note) is bool(found[2])


LEASED = {
    "a CPU slot": ({}, "slot alpha:0"),
    "a GPU by its UUID": ({"CUDA_VISIBLE_DEVICES": "GPU-12345678"}, "GPU-12345678"),
}


@pytest.mark.parametrize(("visible", "name"), LEASED.values(), ids=LEASED.keys())
def test_a_device_is_its_worker_s_alone(tmp_path, visible, name):
    """Who comes second is told who has it; a supervisor that is killed frees it."""
    lease = {"slot": "alpha:0", "is_emulated": False, "holder": "run one"}
    works = tmp_path / "works"
    order = {
        "command": ["sh", "-c", f"touch {works}; exec sleep 60"], "directory": str(tmp_path),
        "environment": visible, "gpu": None, "lease": lease,
    }  # fmt: skip
    command = [sys.executable, "-m", "hetero_hvd.supervisor"]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}

    def second():
        content = json.dumps(order | {"command": ["true"]}) + "\n"
        with subprocess.Popen(command, env=variables_of_checkout(), **pipes) as process:
            process.stdin.write(content.encode())
            process.stdin.flush()
            return process.wait(60), process.stderr.read().decode()

    with subprocess.Popen(command, env=variables_of_checkout(), **pipes) as first:
        first.stdin.write(f"{json.dumps(order)}\n".encode())
        first.stdin.flush()
        wait_until(works.exists, 60, "its lease")
        assert second() == (EXIT_NO_PLACE, f"{name} is in use: run one has it\n")
        first.kill()
        first.wait()
        wait_until(lambda: second() == (0, ""), 60, "the end of its lease")
