"""What each launcher promises: a new one needs a way to be tried here, and passes."""

import asyncio
import io
import json
import pkgutil
import shutil
import sys
import time
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest

from hetero_hvd.agent.server import AgentServer
from hetero_hvd.config import NodeConfig
from hetero_hvd.config.launchers import KINDS
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.workers import launchers
from hetero_hvd.driver.workers.gpu_counts import count_gpus
from hetero_hvd.driver.workers.launch_order import launch_order
from hetero_hvd.driver.workers.launchers.registry import launcher_of
from hetero_hvd.driver.workers.node_samples import NodeSamples
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.exit_codes import EXIT_KILLED, EXIT_NO_CONNECTION, exit_in_words
from hetero_hvd.messages import NodeSampled
from hetero_hvd.probes.kernel.processes import state_of
from hetero_hvd.probes.sampling.shared_folder import FOLDER_VARIABLE
from hetero_hvd.ray_cluster.agents import RayAgents
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.security.cluster_key import make_key, read_key
from tests.conftest import SLURM
from tests.driver.conftest import until
from tests.leftovers import processes_of, wait_until
from tests.ray_cluster.conftest import entry, told_ray_in

RAY = "ray"
"""Not a launcher of its own: Ray places agents, which start the workers."""

SECRET = "s3cret-of-the-job"  # noqa: S105 - it is made up
SSHD = """#!/bin/sh
for last; do :; done
exec sh -c "$last"
"""
"""In the place of ssh: what the node's sshd would do with its last word."""


def program(path, text):
    """Make an executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return path


@asynccontextmanager
async def here(_folder):
    """A process of this machine."""
    yield {}


@asynccontextmanager
async def behind_sshd(folder):
    """A node with sshd."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh here")
    program(folder / "ssh", SSHD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        yield {"address": "10.0.0.2"}


@asynccontextmanager
async def behind_an_agent(folder):
    """A node with an agent."""
    make_key(folder / "key")
    server = AgentServer(read_key(folder / "key"), num_slots=4)
    port = await server.listen("127.0.0.1", 0)
    yield {"address": "127.0.0.1", "port": port, "identity_file": str(folder / "key")}
    await server.close()


@asynccontextmanager
async def inside_an_allocation(_folder):
    """A node of the Slurm job in which this is; see the fixture."""
    yield {"srun_options": {"nodelist": "fast1"}}


WAYS = {
    "local": here,
    "ssh": behind_sshd,
    "agent": behind_an_agent,
    "srun": inside_an_allocation,
}
"""Launcher to a node on which it works, as the settings of that."""


@pytest.fixture(scope="module")
def allocation(slurm):
    """The environment inside a Slurm job of one node, with two GPUs."""
    environment = slurm.allocation("-w", "fast1", "--gres=gpu:2")
    yield environment
    slurm.end(environment["SLURM_JOB_ID"])


@pytest.fixture(scope="module")
def ray_node(tmp_path_factory):
    """The settings of a node on which a Ray that answers as it is told has placed an agent."""
    agents = RayAgents("auto", {}, say=lambda _: None, timeout_seconds=60.0)
    with told_ray_in(tmp_path_factory.mktemp("ray")) as told:
        told.list(entry("1", "alpha"))
        agents.start()
    (node,) = json.loads(agents.granted())["nodes"]
    yield {key: node[key] for key in ("address", "port", "identity_file")}
    agents.close()


@pytest.fixture(autouse=True)
def lent(request, monkeypatch):
    """For srun the test is in an allocation, for Ray there is an agent that it has placed."""
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else ""
    if name == "srun" and request.node.get_closest_marker("process"):
        for variable, value in request.getfixturevalue("allocation").items():
            monkeypatch.setenv(variable, value)
    if name == RAY:
        settings = {"launcher": "agent"} | request.getfixturevalue("ray_node")
        monkeypatch.setitem(WAYS, RAY, lambda _: nullcontext(settings))


IN_ONE_PROCESS = {"srun": pytest.mark.xdist_group(SLURM)}
"""There is one Slurm for all tests, and these ask for it as they run."""

NAMES = [pytest.param(name, marks=IN_ONE_PROCESS.get(name, ())) for name in KINDS]
every_launcher = pytest.mark.parametrize("name", NAMES)
every_way = pytest.mark.parametrize("name", [*NAMES, RAY])


def test_each_has_a_declaration_a_module_and_a_way_to_be_tried():
    """What nodes.yaml may say is what there is."""
    modules = {found.name for found in pkgutil.iter_modules(launchers.__path__)} - {"registry"}
    assert KINDS.keys() == modules == WAYS.keys()
    assert all(kind.name == name for name, kind in KINDS.items())


async def run_on(node, folder, command, scenario=None, job=""):
    """Run a command on a node; its exit code and what it printed."""
    console = Console(io.StringIO())
    output = WorkerOutput(console, folder / "alpha-0.log", "")
    order = launch_order(node, 0, command, {"HETERO_HVD_TLS": SECRET})
    process = await WorkerProcess.start(node, order, output, job=job)
    if scenario is not None:
        await scenario(process)
    code = await asyncio.wait_for(process.exited, 15)
    output.close()
    console.close()
    return code, (folder / "alpha-0.log").read_text()


def run(name, folder, command, scenario=None, *, job="", **settings):
    """Run a command by a launcher, on a node that it reaches."""

    async def main():
        async with WAYS[name](folder) as keys:
            node = NodeConfig(name="alpha", **{"launcher": name, **keys, **settings})
            return await run_on(node, folder, command, scenario, job)

    return asyncio.run(main())


def command_lines():
    """Those of all processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            yield path.read_bytes()


@pytest.mark.process
@every_way
@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_output_and_exit_code_are_those_of_the_worker(tmp_path, name, script, code):
    """As if it ran here; its folder is the node's."""
    found, text = run(
        name, tmp_path, ("sh", "-c", f"pwd; echo $COLOUR; {script}"),
        directory=str(tmp_path), env={"COLOUR": "blue"},
    )  # fmt: skip
    assert (found, text.splitlines()) == (code, [str(tmp_path), "blue"])


@pytest.mark.process
@every_launcher
def test_a_node_counts_its_gpus(tmp_path, name, monkeypatch):
    """As CUDA would, from the node's environment."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")

    async def main():
        async with WAYS[name](tmp_path) as keys:
            return await count_gpus(NodeConfig(name="alpha", launcher=name, **keys))

    assert asyncio.run(main()) == 2


@pytest.mark.process
@every_launcher
def test_no_secret_and_nothing_of_the_job_s_environment_is_on_a_command_line(tmp_path, name):
    """Command lines are there for every user of a machine to see."""
    seen = []

    async def look(process):
        await until((tmp_path / "up").exists)
        seen.extend(command_lines())
        process.kill()

    command = ("sh", "-c", "echo $HETERO_HVD_TLS; touch up; sleep 50")
    settings = {"directory": str(tmp_path), "env": {"TOKEN": SECRET}}
    code, text = run(name, tmp_path, command, look, **settings)
    assert code >= 128
    assert SECRET in text
    assert any(b"hetero_hvd.supervisor" in line for line in seen)
    assert not [line for line in seen if SECRET.encode() in line or b"HETERO_HVD_TLS=" in line]


@pytest.mark.process
@every_way
def test_the_worker_ends_with_the_process_that_has_started_it(tmp_path, name):
    """However that goes; so no worker outlives its driver."""

    async def cut(process):
        await until((tmp_path / "up").exists)
        process.cut()

    command = ("sh", "-c", "touch up; exec sleep 50")
    run(name, tmp_path, command, cut, directory=str(tmp_path))
    wait_until(lambda: not processes_of(tmp_path), 8, "the end of the worker")


@pytest.mark.process
@every_way
def test_it_can_be_asked_to_end(tmp_path, name):
    """The order reaches the worker, which ends as it likes."""

    async def terminate(process):
        await until((tmp_path / "up").exists)
        process.terminate()

    script = "trap 'exit 5' TERM; touch up; while :; do sleep 0.1; done"
    assert run(name, tmp_path, ("sh", "-c", script), terminate, directory=str(tmp_path))[0] == 5


HANGS = {
    "deaf": ("trap '' TERM; echo $$ > new; mv new up; while :; do sleep 0.1; done", "SR", 137, 137),
    "stopped": ("echo $$ > new; mv new up; kill -STOP $$", "T", 137, 137),
    "with a deaf child": ("(trap '' TERM; exec sleep 50) & echo $! > up; wait", "S", 143, 137),
}
"""How a worker, or its child, does not end: a script that tells that process's number, the states
in which it is then, and the exit codes of who is asked to end first, and of who is killed."""


def ask_first(process):
    """As at the end of a job: who does not go within the grace is killed."""
    process.allow(0.3)
    process.terminate()


ORDERS = {"asked first": ask_first, "killed": WorkerProcess.kill}


@pytest.mark.process
@every_way
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_is_ended_and_nothing_of_it_is_left(tmp_path, name, hang, order):
    """Whatever the script does not do any more. It hangs before it is asked, not soon after."""
    script, states, *codes = HANGS[hang]

    def hangs():
        found = (tmp_path / "up").read_text().strip() if (tmp_path / "up").exists() else ""
        return found and state_of(int(found)) in states

    async def end(process):
        await until(hangs)
        ORDERS[order](process)

    code, _ = run(name, tmp_path, ("sh", "-c", script), end, directory=str(tmp_path))
    assert code == dict(zip(ORDERS, codes, strict=True))[order]
    wait_until(lambda: not processes_of(tmp_path), 8, "the end of all that it had started")


@pytest.mark.process
@every_way
def test_a_node_that_is_lost_is_told_and_takes_its_worker_along(tmp_path, name):
    """Its supervisor is gone without a word: the kernel, or Slurm, ends what it has started."""

    async def lose(_process):
        await until((tmp_path / "up").exists)
        worker = psutil.Process(int((tmp_path / "up").read_text()))
        worker.parent().kill()

    command = ("sh", "-c", "echo $$ > new; mv new up; exec sleep 50")
    code, _ = run(name, tmp_path, command, lose, directory=str(tmp_path))
    assert code in (EXIT_KILLED, EXIT_NO_CONNECTION)
    wait_until(lambda: not processes_of(tmp_path), 8, "the end of the worker")


def watching(folder):
    """Supervisors without a worker that share samples in a folder."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            is_ours = bytes(folder) in (path / "environ").read_bytes()
            if is_ours and b"--samples" in (path / "cmdline").read_bytes():
                yield path.name


@pytest.mark.process
@every_launcher
def test_a_node_is_heard_of_without_a_worker(name, tmp_path, monkeypatch):
    """Its supervisor tells what it does as long as it is asked to, and leaves nothing behind."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))
    bus, told = EventBus(), []
    bus.subscribe(lambda _, event: told.append(event), "")

    async def main():
        async with WAYS[name](tmp_path) as keys:
            away = [NodeConfig(name="alpha", launcher=name, **keys)]
            samples = NodeSamples(tuple, bus, seconds=1, away=lambda: away)

            async def look_until(condition):
                async with asyncio.timeout(30):
                    while not condition():
                        samples.look(time.monotonic())
                        await asyncio.sleep(0.05)

            await look_until(lambda: sum(isinstance(one, NodeSampled) for one in told) >= 2)
            away.clear()
            samples.look(time.monotonic())
            await look_until(lambda: not list(watching(tmp_path)))
            away.append(NodeConfig(name="beta", launcher=name, **keys))
            await look_until(lambda: any(one.node == "beta" for one in told))
            assert list(watching(tmp_path))
            await samples.close()

    asyncio.run(main())
    assert {one.node for one in told} == {"alpha", "beta"}
    wait_until(lambda: not list(watching(tmp_path)), 10, "the end of all supervisors")


HOSTILE = ["--gpus", "-x (process 1)", "--tls=a b", "'; touch done; '", "$(touch done)`touch done`"]


@pytest.mark.process
@every_launcher
@pytest.mark.parametrize("words", HOSTILE)
def test_no_word_is_taken_for_an_option_or_an_order(tmp_path, name, words):
    """Whatever job, folder and interpreter are called, on the node as well."""
    folder = tmp_path / words.replace("/", "")
    folder.mkdir()
    settings = {"directory": str(folder)}
    if "python" in KINDS[name].keys:
        python = program(folder / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        settings["python"] = str(python)
    command = ("sh", "-c", "exit 7")
    assert run(name, tmp_path, command, job=words, **settings)[0] == 7
    assert not list(tmp_path.rglob("done"))


@every_launcher
def test_an_argument_vector_is_words(name):
    """No string for a shell of this machine; the supervisor's own arguments come last."""
    node = NodeConfig(name="alpha", launcher=name)
    plain, counting = (launcher_of(node).command(node, words, "") for words in ((), ("--gpus",)))
    for vector in (plain, counting):
        assert all(isinstance(word, str) and "\0" not in word for word in vector)
    assert counting[:-1] == plain[:-1] or counting == [*plain, "--gpus"]
    assert counting[-1].endswith("--gpus")


NOWHERE = {
    "ssh": ({"port": 1}, "127.0.0.1 port 1: "),
    "agent": ({"port": 1, "identity_file": "key"}, "127.0.0.1 port 1: "),
    "srun": ({"srun_options": {"nodelist": "fast2"}}, "Requested node configuration is not avail"),
}
"""Launcher to a node that it cannot reach, and why not; without those to which there is no way."""


@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in NAMES if not KINDS[name.values[0]].is_local])
def test_a_node_out_of_reach_is_told_by_the_exit_code(tmp_path, monkeypatch, name):
    """It is another one than a script's, has words, and the last line says why."""
    monkeypatch.chdir(tmp_path)
    make_key(Path("key"))
    settings, why = NOWHERE[name]
    node = NodeConfig(name="alpha", launcher=name, address="127.0.0.1", **settings)

    code, text = asyncio.run(run_on(node, tmp_path, ("true",)))
    assert code in launcher_of(node).unreachable_codes
    assert exit_in_words(code) == f"exited with code {code}"
    assert why in text


@every_launcher
def test_codes_of_the_way_are_none_of_a_script_s_usual_ones(name):
    """Where there is no way, there are none."""
    node = NodeConfig(name="alpha", launcher=name)
    launcher = launcher_of(node)
    assert launcher.unreachable_codes.isdisjoint({0, 1, 2, 64, 71, 127, 137, 143})
    assert bool(launcher.unreachable_codes) != node.is_local
