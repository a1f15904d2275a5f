"""Worker processes through their supervisor: real processes, no Horovod."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hetero_hvd import supervisor
from hetero_hvd.config import EmulateConfig, NodeConfig
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.workers import worker_process
from hetero_hvd.driver.workers.gpu_counts import count_gpus
from hetero_hvd.driver.workers.launch_order import launch_order
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.errors import JobError
from hetero_hvd.exit_codes import exit_in_words
from hetero_hvd.messages.launch import (
    EmulateSettings,
    NodeSettings,
    WorkerLaunch,
    launch_from_text,
)
from tests.driver.conftest import processes_of, until, wait_until

HERE = NodeConfig(name="alpha", directory=None)


def run(command, folder, scenario=None, **node):
    """Run a command under a supervisor; returns its exit code and what it printed."""

    async def main():
        console = Console(io.StringIO())
        output = WorkerOutput(console, folder / "alpha-0.log", "")
        order = launch_order(
            NodeConfig(name="alpha", directory=str(folder), **node), 0, command, {}
        )
        process = await WorkerProcess.start(HERE, order, output)
        if scenario is not None:
            await scenario(process, folder / "alpha-0.log")
        code = await asyncio.wait_for(process.exited, 15)
        output.close()
        console.close()
        await asyncio.sleep(0)
        return code, (folder / "alpha-0.log").read_text(errors="replace")

    return asyncio.run(main())


async def wait_for_text(path, text):
    """Until the log has it."""
    await until(lambda: text in path.read_text())


def parent_of(pid):
    """Pid of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -SEGV $$", 139)]
)
def test_the_exit_code_is_the_worker_s(tmp_path, script, code):
    """Also that of a signal, as a shell would say it."""
    assert run(("sh", "-c", script), tmp_path)[0] == code


@pytest.mark.process
def test_a_script_gets_the_node_s_interpreter(tmp_path):
    """Both `train.py` and `python train.py` run under the interpreter of the node."""
    script = "import sys; print(sys.executable, sys.argv[1:])"
    (tmp_path / "train.py").write_text(script)
    for command in (("train.py", "a b"), ("python", "train.py", "a b")):
        code, text = run(command, tmp_path)
        assert code == 0
        executable, arguments = text.splitlines()[-1].split(" ", 1)
        assert Path(executable).parent == Path(sys.executable).parent
        assert arguments == "['a b']"


@pytest.mark.process
def test_a_missing_program_is_one_line(tmp_path):
    """Exit code 127 and what is missing."""
    code, text = run(("no-such-program",), tmp_path)
    assert code == 127
    assert "no-such-program" in text
    assert "Traceback" not in text


@pytest.mark.process
def test_the_worker_s_environment(tmp_path, monkeypatch):
    """It has the node's additions, its devices, and one thread if it is emulated."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    names = ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "COLOUR", "PYTHONUNBUFFERED"]
    names += ["HETERO_HVD_LAUNCH"]
    script = f"import os, json; print(json.dumps([os.environ.get(n) for n in {names}]))"
    _, text = run(
        (sys.executable, "-c", script),
        tmp_path,
        env={"COLOUR": "blue"},
        devices=(3,),
        emulate=EmulateConfig(relative_speed=0.5),
        max_local_batch_size=16,
    )
    *values, told = json.loads(text)
    assert values == ["1", "3", "blue", "1"]
    emulate = EmulateSettings(relative_speed=0.5)
    assert launch_from_text(told) == WorkerLaunch(
        node=NodeSettings(emulate=emulate, max_local_batch_size=16)
    )


@pytest.mark.process
def test_the_end_of_the_input_ends_the_whole_tree(tmp_path):
    """When the driver or ssh is gone, the worker and its children are ended, deaf ones as well."""
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "hetero_hvd.supervisor"], stdin=subprocess.PIPE, text=True
    )
    script = "sleep 100 & trap '' TERM; echo up > up; wait; sleep 100"
    order = {"command": ["sh", "-c", script], "directory": str(tmp_path), "environment": {}}
    supervisor.stdin.write(json.dumps({**order, "gpu": None}) + "\n")
    supervisor.stdin.flush()
    wait_until((tmp_path / "up").exists, 10, "the worker")
    assert len(processes_of(tmp_path)) == 2
    supervisor.stdin.close()
    assert supervisor.wait(10) == 128 + signal.SIGKILL
    wait_until(lambda: not processes_of(tmp_path), 2, "the end of the tree")


@pytest.mark.process
def test_a_killed_supervisor_takes_the_worker_with_it(tmp_path):
    """The kernel kills the worker when its supervisor is killed."""

    async def kill_supervisor(process, log):  # noqa: ARG001
        await until(lambda: processes_of(tmp_path))
        [worker] = processes_of(tmp_path)
        os.kill(parent_of(worker), signal.SIGKILL)

    assert run(("sleep", "100"), tmp_path, kill_supervisor)[0] == 137
    wait_until(lambda: not processes_of(tmp_path), 2, "the end of the worker")


@pytest.mark.process
def test_terminate_is_gentle_and_kill_is_not(tmp_path):
    """SIGTERM lets the script clean up; a kill ends also one that is stopped."""
    script = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.1; done"

    async def terminate(process, log):
        await wait_for_text(log, "up")
        process.terminate()

    code, text = run(("sh", "-c", script), tmp_path, terminate)
    assert code == 5
    assert "bye" in text

    async def kill(process, log):
        await wait_for_text(log, "halt")
        process.kill()

    assert run(("sh", "-c", "echo halt; kill -STOP $$"), tmp_path, kill)[0] == 137


@pytest.mark.process
def test_the_grace_may_change_while_it_passes(tmp_path):
    """Who finishes a long step and keeps its state is waited for, who hangs is not."""
    script = "trap 'sleep 1; exit 5' TERM; echo up; while :; do sleep 0.1; done"

    async def hurry(process, log):
        process.allow(0.2)
        await wait_for_text(log, "up")
        process.terminate()

    async def wait(process, log):
        await hurry(process, log)
        process.allow(60.0)

    async def write(process, log):
        process.allow(60.0, whatever_follows=True)  # it keeps its state
        await hurry(process, log)  # while the others' steps get shorter

    for number, (tell, expected) in enumerate([(hurry, 137), (wait, 5), (write, 5)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert run(("sh", "-c", script), folder, tell)[0] == expected


def test_output_of_any_size_and_shape_arrives(tmp_path):
    """Long lines, no end of line, bytes that are no text: nothing blocks, the file is complete."""
    script = "import sys; w = sys.stdout.buffer.write; w(b'x' * 300_000 + b'\\n\\xff\\xfeend')"
    code, _ = run((sys.executable, "-c", script), tmp_path)
    assert code == 0
    assert (tmp_path / "alpha-0.log").read_bytes() == b"x" * 300_000 + b"\n\xff\xfeend"


@pytest.mark.process
def test_a_daemon_that_holds_the_output_does_not_hide_the_end(tmp_path):
    """A child that left the process group keeps the pipe open; the end is noticed all the same."""
    code, _ = run(("sh", "-c", "setsid sleep 3 & exit 4"), tmp_path)
    assert code == 4


@pytest.mark.process
def test_a_node_counts_its_own_gpus(monkeypatch):
    """As CUDA would, from the environment; the driver need not load CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert asyncio.run(count_gpus(HERE)) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert asyncio.run(count_gpus(HERE)) == 0


ORDER = {"command": ["true"], "directory": "/", "environment": {}, "gpu": None}
ORDERS = {
    "no JSON": "{",
    "no text": b"\xff\xfe\n",
    "deep": "[" * 100_000,
    "a list": [],
    "null": None,
    "empty": {},
    "no command": ORDER | {"command": []},
    "command a text": ORDER | {"command": "true"},
    "command of numbers": ORDER | {"command": [1]},
    "command with NUL": ORDER | {"command": ["a\0b"]},
    "command that is not there": ORDER | {"command": ["no-such-program"]},
    "command half a character": ORDER | {"command": ["\ud800"]},
    "no directory": {**ORDER, "directory": None},
    "directory a number": ORDER | {"directory": 1},
    "directory with NUL": ORDER | {"directory": "a\0b"},
    "directory of nobody": ORDER | {"directory": "~no-such-user/x"},
    "directory that is not there": ORDER | {"directory": "/no/such/folder"},
    "directory a file": ORDER | {"directory": "/etc/passwd"},
    "environment a list": ORDER | {"environment": []},
    "environment of numbers": ORDER | {"environment": {"A": 1}},
    "environment with NUL": ORDER | {"environment": {"A": "a\0b"}},
    "environment with a bad name": ORDER | {"environment": {"A=B": "1"}},
    "environment without a name": ORDER | {"environment": {"": "1"}},
    "gpu missing": {name: ORDER[name] for name in ("command", "directory", "environment")},
    "gpu a text": ORDER | {"gpu": "0"},
    "gpu true": ORDER | {"gpu": True},
    "gpu below 0": ORDER | {"gpu": -1},
}


@pytest.mark.process
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_an_order_that_cannot_be_carried_out_is_one_sentence(order, monkeypatch, capfd):
    """Whatever field is wrong, and also if only this machine cannot do it: no traceback."""
    text = order if isinstance(order, bytes | str) else json.dumps(order)
    line = text if isinstance(text, bytes) else f"{text}\n".encode()
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "wb") as driver:
        threading.Thread(target=lambda: driver.write(line) and driver.flush()).start()
        monkeypatch.setattr(supervisor.sys, "stdin", stdin)
        monkeypatch.setattr(supervisor.sys, "argv", ["hetero_hvd.supervisor"])
        monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
        assert supervisor.main() == supervisor.EXIT_NOT_STARTED
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("cannot start the worker: ")
    directory = str(order.get("directory") if isinstance(order, dict) else "")
    if directory.startswith(("~", "/no", "/etc")):  # the setting, and no number of the kernel's
        assert said.startswith(f"cannot start the worker: directory {directory}: ")
        assert "Errno" not in said


SSH = {
    "sleeps": ("sleep 100 & sleep 100", "no answer in 0.3 s"),
    "is deaf": ("trap '' TERM HUP INT; while :; do sleep 0.1; done", "no answer in 0.3 s"),
    "prints slowly for ever": ("while :; do printf x; sleep 0.05; done", "no answer in 0.3 s"),
    "prints lines for ever": ("while :; do echo 7; sleep 0.05; done", "no answer in 0.3 s"),
    "exits 255": ("echo 'ssh: connect: No route to host' >&2; exit 255", "No route to host"),
    "prints garbage": ("head -c 100000 /dev/urandom; echo; echo Welcome", "Welcome"),
    "prints a number and fails": ("echo 2; exit 1", "2"),
    "closes at once": ("exec 1>&- 2>&-; exit 0", "exited with code 0"),
    "closes and stays": ("exec 0<&- 1>&- 2>&-; sleep 100", "no answer in 0.3 s"),
    "leaves a daemon": ("sleep 1 & echo none", "none"),
}


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """Puts a script in ssh's place; at the end none of its processes may be left."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(script):
        (folder / "ssh").write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        (folder / "ssh").chmod(0o755)
        return NodeConfig(name="gpubox", address="10.0.0.2", launcher="ssh")

    yield put
    wait_until(lambda: not processes_of(tmp_path), 2, "the end of ssh and of what it started")


@pytest.mark.process
@pytest.mark.parametrize(("script", "why"), SSH.values(), ids=SSH.keys())
def test_whatever_ssh_does_a_count_fails_in_time_and_says_why(fake_ssh, script, why):
    """A number is believed of a command that has ended well only."""
    node = fake_ssh(script)
    with pytest.raises(JobError) as error:
        asyncio.run(count_gpus(node, timeout_seconds=0.3 if "no answer" in why else 20))
    assert why in str(error.value)


@pytest.mark.process
@pytest.mark.parametrize("script", [script for script, _ in SSH.values()], ids=SSH.keys())
def test_whatever_ssh_does_a_start_can_be_taken_back(fake_ssh, script, tmp_path, monkeypatch):
    """A worker's ssh that hangs ends when it is killed, and neither blocks nor outlives us."""
    monkeypatch.setattr(worker_process, "KILL_SECONDS", 0.1)
    node = fake_ssh(script)

    async def main():
        console = Console(io.StringIO())
        output = WorkerOutput(console, tmp_path / "gpubox-0.log", "")
        order = launch_order(node, 0, ("train.py",), {"X": "x" * 100_000})
        process = await WorkerProcess.start(node, order, output)
        await asyncio.wait({process.exited}, timeout=0.2)
        process.kill()
        await asyncio.wait_for(process.exited, 5)
        output.close()
        console.close()

    asyncio.run(main())


def test_each_slot_has_its_own_gpu():
    """Given devices are used as they are; else the supervisor picks one by the slot's index."""
    node = NodeConfig(name="a", devices=("GPU-1", "GPU-2"))
    order = launch_order(node, 1, ("x.py",), {})
    assert (order.environment["CUDA_VISIBLE_DEVICES"], order.gpu) == ("GPU-2", None)
    assert order.environment["ZE_AFFINITY_MASK"] == "GPU-2"
    order = launch_order(NodeConfig(name="a", devices=()), 0, ("x.py",), {})
    assert (order.environment["CUDA_VISIBLE_DEVICES"], order.gpu) == ("", None)
    assert "gpu" not in order.environment["ONEAPI_DEVICE_SELECTOR"]
    order = launch_order(NodeConfig(name="a", slots=2), 1, ("x.py",), {})
    assert order.gpu == 1
    assert "CUDA_VISIBLE_DEVICES" not in order.environment


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited with code 0"), (137, "was ended by SIGKILL"), (255, "exited with code 255")],
)
def test_exit_codes_in_words(code, words):
    """A signal has a name."""
    assert exit_in_words(code) == words
