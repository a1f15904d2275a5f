"""Worker processes through their supervisor: real processes, no Horovod."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from hetero_hvd.config import EmulateConfig, NodeConfig
from hetero_hvd.driver.launcher import (
    WorkerProcess,
    count_gpus,
    exit_in_words,
    launch_order,
    supervisor_command,
)
from hetero_hvd.driver.output import Console, WorkerOutput

from .conftest import processes_of, until, wait_until

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
def test_the_worker_s_environment(tmp_path):
    """It has the node's additions, its devices, and one thread if it is emulated."""
    names = ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "COLOUR", "PYTHONUNBUFFERED"]
    names += ["HETERO_HVD_NODE"]
    script = f"import os, json; print(json.dumps([os.environ.get(n) for n in {names}]))"
    _, text = run(
        (sys.executable, "-c", script),
        tmp_path,
        env={"COLOUR": "blue"},
        devices=(3,),
        emulate=EmulateConfig(relative_speed=0.5),
        max_local_batch_size=16,
    )
    *values, settings = json.loads(text)
    assert values == ["1", "3", "blue", "1"]
    assert json.loads(settings) == {
        "emulate": asdict(EmulateConfig(relative_speed=0.5)),
        "interface": None,
        "max_local_batch_size": 16,
        "memory_limit_bytes": None,
    }


@pytest.mark.process
def test_the_end_of_the_input_ends_the_whole_tree(tmp_path):
    """When the driver or ssh is gone, the worker and its children are ended, deaf ones as well."""
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "hetero_hvd.worker"], stdin=subprocess.PIPE, text=True
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


def test_ssh_gets_an_argument_vector():
    """Options come from nodes.yaml; nothing passes through a local shell, nothing is secret."""
    node = NodeConfig(
        name="gpubox",
        address="10.0.0.2",
        launcher="ssh",
        user="train",
        port=2222,
        identity_file="/keys/id",
        ssh_options={"StrictHostKeyChecking": "no"},
        python="/opt/my python/bin/python",
    )
    vector = supervisor_command(node)
    assert vector[:2] == ["ssh", "-T"]
    assert "StrictHostKeyChecking=no" in vector
    assert "ServerAliveInterval=5" in vector
    assert vector[-7:] == [
        "-p",
        "2222",
        "-i",
        "/keys/id",
        "train@10.0.0.2",
        "--",
        "exec '/opt/my python/bin/python' -m hetero_hvd.worker",
    ]


@pytest.mark.process
def test_a_node_counts_its_own_gpus(monkeypatch):
    """As CUDA would, from the environment; the driver need not load CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert asyncio.run(count_gpus(HERE)) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert asyncio.run(count_gpus(HERE)) == 0


def test_each_slot_has_its_own_gpu():
    """Given devices are used as they are; else the supervisor picks one by the slot's index."""
    node = NodeConfig(name="a", devices=("GPU-1", "GPU-2"))
    order = launch_order(node, 1, ("x.py",), {})
    assert (order.environment["CUDA_VISIBLE_DEVICES"], order.gpu) == ("GPU-2", None)
    order = launch_order(NodeConfig(name="a", devices=()), 0, ("x.py",), {})
    assert (order.environment["CUDA_VISIBLE_DEVICES"], order.gpu) == ("", None)
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
