"""The code keeps to its own rules: small files, short functions, one direction of imports."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from hetero_hvd.config.launchers import KINDS
from hetero_hvd.core.balance.policies.registry import RULES
from hetero_hvd.core.balance.settings import DEFAULT_RULE
from hetero_hvd.exit_codes import EXIT_REFUSED

CHECKOUT = Path(__file__).parents[1]
PACKAGES = ("hetero_hvd", "scripts/benchmarks", "tests/kit")
FOLDERS = ("hetero_hvd", "scripts", "tests", "docs")
FILES = sorted(path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*.py"))
SOURCES = sorted(path for folder in PACKAGES for path in (CHECKOUT / folder).rglob("*.py"))
MODULES = sorted(
    ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
    .removeprefix("scripts.")
    .removesuffix(".__init__")
    for path in SOURCES
    if path.name != "sitecustomize.py"  # not a part of the package: it is for a script's processes
)
TRAINS = (
    "hetero_hvd.data.",
    "hetero_hvd.integrations.",
    "hetero_hvd.worker.",
    "hetero_hvd.driver.",
    "hetero_hvd.measure.comm_worker",
    "hetero_hvd.measure.patterns",
    "benchmarks.workloads.",
    "benchmarks.causes.drawn_script",
    "benchmarks.causes.injected_script",
    "benchmarks.faults.peer_script",
    "benchmarks.sharding.deep",
    "benchmarks.sharding.pipelined",
    "tests.kit.fault_script",
    "tests.kit.scale.measured_driver",
)
"""What needs Horovod; all else must import without it and without torch."""


def relative(path):
    """How a finding shows a file."""
    return str(path.relative_to(CHECKOUT))


@cache
def nodes_of(path):
    """All nodes of a file, which most laws go through; its own is the first."""
    return list(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(scope="module", autouse=True)
def each_file_is_read_once():
    """One process goes through them for all laws; millions of nodes are no garbage meanwhile."""
    gc.disable()
    yield
    nodes_of.cache_clear()
    gc.enable()


def num_lines(function):
    """Lines of a function without its docstring: promises may be long, code may not."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    promised = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return function.end_lineno - function.lineno + 1 - promised


def what_is_long(path):
    """The file and its functions, with their lines."""
    if (lines := len(path.read_text().splitlines())) > 450:
        yield relative(path), lines
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = num_lines(node)
            if lines > (60 if node.name == "__init__" else 45):
                yield f"{relative(path)}: {node.name}", lines


def test_files_and_functions_are_short():
    """A file is read in one sitting: 450 lines; a function has 45 beside its docstring.

    A constructor, which only puts parts together, may have 60.
    """
    assert dict(long for path in FILES for long in what_is_long(path)) == {}


def packed(path):
    """Lines that set several attributes at once, though each gets a value of its own."""
    for node in nodes_of(path):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            names = node.targets[0].elts
            is_packed = isinstance(node.value, ast.Tuple) and len(node.value.elts) == len(names)
            if is_packed and all(isinstance(name, ast.Attribute) for name in names):
                written = {ast.unparse(name) for name in names}
                read = {
                    ast.unparse(n) for n in ast.walk(node.value) if isinstance(n, ast.Attribute)
                }
                if not written & read:  # to exchange two is no packing
                    yield node.lineno


def test_each_attribute_has_its_own_line():
    """Nothing is packed into a line to save another one."""
    assert [f"{relative(path)}:{line}" for path in FILES for line in packed(path)] == []


FOLDERS_WITH_ROOM = sorted(
    path.parent
    for folder in ("hetero_hvd", "scripts/benchmarks", "tests/kit")
    for path in (CHECKOUT / folder).rglob("__init__.py")
)


def test_a_room_can_be_overseen_and_says_what_it_is_for():
    """At most 13 modules, and a sentence at the door."""
    for folder in FOLDERS_WITH_ROOM:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= 13, relative(folder)
        assert ast.get_docstring(nodes_of(folder / "__init__.py")[0]), relative(folder)


def test_names_say_what_is_inside():
    """No module is called by a name that would fit any other as well."""
    vague = {"utils", "helpers", "common", "base", "misc", "manager"}
    assert [relative(path) for path in FILES if path.stem in vague] == []


ROOMS = {
    "hetero_hvd": {"benchmarks", "scripts", "tests"},
    "tests/kit": {"benchmarks", "scripts"},
}
"""Folder to packages that nothing in it may know."""


def imported_by(path):
    """The packages that a file imports, by their first name; its own by relative imports apart."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_below_does_not_know_what_is_above(room):
    """The product does without rigs and benchmarks, the rigs without benchmarks."""
    files = (CHECKOUT / room).rglob("*.py")
    found = {relative(path): ROOMS[room].intersection(imported_by(path)) for path in files}
    assert found
    assert {path: names for path, names in found.items() if names} == {}


def run_python(code):
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_does_not_train_imports_without_horovod_and_torch():
    """The package, its command line, configuration, core and probes need neither."""
    names = [name for name in MODULES if not name.startswith(TRAINS) and "__main__" not in name]
    code = f"""
import importlib, sys
sys.modules["horovod"] = sys.modules["torch"] = None  # importing them raises ImportError
for name in {names!r}:
    importlib.import_module(name)
print("imported")
"""
    assert run_python(code) == "imported\n"


def test_importing_has_no_side_effect():
    """No module starts a thread, installs a signal handler, sets up logging or touches CUDA."""
    names = [name for name in MODULES if "__main__" not in name]
    code = f"""
import importlib, logging, os, signal, sys, threading
import lightning.pytorch, torch, horovod.torch, transformers.trainer  # theirs are not ours
handlers = [signal.getsignal(number) for number in signal.valid_signals()]
environment, threads, logs = dict(os.environ), threading.enumerate(), list(logging.root.handlers)
for name in {names!r}:
    importlib.import_module(name)
assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
assert (dict(os.environ), threading.enumerate()) == (environment, threads)
assert logging.root.handlers == logs
assert not torch.cuda.is_initialized()
assert not horovod.torch.is_initialized()
print("imported")
"""
    assert run_python(code) == "imported\n"


WALL_CLOCK = {
    "hetero_hvd/agent/hub_sender.py": "how old a sample is; what is left of an ended boot",
    "hetero_hvd/hub/announcer.py": "until when an advert is to be believed, on other machines too",
    "hetero_hvd/cli/watch/advise.py": "the end of what is asked of a Prometheus",
    "hetero_hvd/agent/interruptions.py": "until when the cloud leaves the machine",
    "hetero_hvd/agent/service.py": "until when an advert is to be believed, on other machines too",
    "hetero_hvd/discovery/receiver.py": "whether an advert is still to be believed",
    "scripts/benchmarks/report.py": "the date of a measurement",
    "scripts/benchmarks/causes/drawn.py": "when a fault began, beside the records of the run",
    "hetero_hvd/worker/session/worker_context.py": "when a phase began, on another machine",
    "hetero_hvd/driver/phase_recordings.py": "how late that is heard, 60 s at most",
    "hetero_hvd/driver/run_reports.py": "the same, for the mark of the phase",
    "hetero_hvd/driver/membership/clock_offsets.py": "how far wall clocks are off",
    "hetero_hvd/worker/session/driver_client.py": "the answer to that question",
    "tests/kit/scale/fake_worker.py": "the same, of a worker that computes nothing",
    "hetero_hvd/integrations/huggingface/trainer.py": "transformers times a training by it",
    "hetero_hvd/driver/membership/horovod_driver.py": "Horovod wants a time, and only prints it",
    "hetero_hvd/run/web/app.py": "by which a page tells how long ago something was",
    "hetero_hvd/run/records/run_folder.py": "the name of the output folder",
    "hetero_hvd/security/certificates.py": "until when a certificate is valid, everywhere",
    "hetero_hvd/driver/output/json_logs.py": "when something was logged, for people",
    "hetero_hvd/run/sinks/destinations/kubernetes_object.py": "when the state was told, for people",
    "hetero_hvd/run/event_bus.py": "when an event happened, for people",
    "hetero_hvd/cli/queue/tried.py": "how old a file is, which an earlier run has left",
    "hetero_hvd/remote/examination.py": "how far the nodes' wall clocks are off",
    "hetero_hvd/remote/programs/examination_program.py": "the answer to that question",
}


def test_nothing_is_decided_by_the_wall_clock():
    """Clocks are set and drift: what waits, ages or expires uses the monotonic clock."""
    found = {
        str(path.relative_to(CHECKOUT))
        for path in SOURCES
        if re.search(r"time\.time\(|time_ns\(|datetime\.(now|utcnow|today)\(", path.read_text())
    }
    assert found == WALL_CLOCK.keys()


NAMES = {
    "launchers": (
        KINDS.keys(),
        {
            "hetero_hvd/config/launchers.py": "their declarations",
            "hetero_hvd/cli/commands.py": "the command `agent`",
            "hetero_hvd/agent/server.py": "the end of its link, and whose port it is",
            "hetero_hvd/security/cluster_tls.py": "whom its certificate is for",
            "hetero_hvd/probes/machine/hardware.py": "a program that may be there",
            "hetero_hvd/probes/doctor.py": "the heading of that",
            "hetero_hvd/probes/other_launchers.py": "programs by which no script is started",
        },
    ),
    "rules": (
        RULES.keys() - {DEFAULT_RULE},  # which is a word of its own
        {"hetero_hvd/core/balance/policies/registry.py": "their declarations"},
    ),
}
"""What there are several kinds of: their names, and each file that has one of these as a text, but
for the module of that name."""


@pytest.mark.parametrize(("names", "files"), NAMES.values(), ids=NAMES.keys())
def test_the_kinds_of_a_thing_have_their_names_in_one_place(names, files):
    """All others ask the declaration, so that a new kind is known to them."""
    found = {
        relative(path)
        for path in (CHECKOUT / "hetero_hvd").rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and node.value in names and path.stem != node.value
    }
    assert found == files.keys()


ACCELERATORS = {
    "hetero_hvd/worker/accelerator.py": "the door",
    "hetero_hvd/core/versions.py": "the column of what torch was built for",
    "hetero_hvd/probes/doctor.py": "what Horovod says that it was built with",
}
"""Who names a kind of accelerator; all others ask the door."""


def names_an_accelerator(path):
    """Whether a file asks torch for one kind, or has its name as a text, alone or in code."""
    asked = re.compile(r"torch\.(cuda|xpu)|.*\.is_(cuda|xpu)")
    imported = re.compile(r"(import torch\.|from torch import .*\b|from torch\.)(cuda|xpu)\b.*")
    named = re.compile(r"(cuda|xpu)(:\d+)?|(?s:.*)[\"'](cuda|xpu)[\"'](?s:.*)")
    return any(
        (isinstance(node, ast.Attribute) and asked.fullmatch(ast.unparse(node)))
        or (isinstance(node, ast.Import | ast.ImportFrom) and imported.match(ast.unparse(node)))
        or (isinstance(node, ast.Constant) and named.fullmatch(str(node.value)))
        for node in nodes_of(path)
    )


def test_accelerators_have_one_door():
    """Only it knows that there are several kinds, and what each can do."""
    found = {
        relative(path)
        for path in (CHECKOUT / "hetero_hvd").rglob("*.py")
        if names_an_accelerator(path)
    }
    assert found == ACCELERATORS.keys()


ENVIRONMENT_ROOMS = ("hetero_hvd/cli/", "hetero_hvd/config/")
ENVIRONMENT = {
    "hetero_hvd/worker/session/launch_settings.py": "what a worker is told at its start",
    "hetero_hvd/worker/comm/horovod.py": "Horovod's own variables",
    "hetero_hvd/ray_cluster/node_actor.py": "what the agent that it starts inherits from Ray",
    "hetero_hvd/supervisor.py": "what the worker that it starts inherits from the node",
    "hetero_hvd/driver/workers/launch_order.py": "Horovod's and NCCL's, equal on all workers",
    "hetero_hvd/driver/workers/launchers/srun.py": "what a step does not inherit",
    "hetero_hvd/driver/workers/worker_launch.py": "whether the user records a timeline; checks",
    "hetero_hvd/driver/job.py": "which of its values are secret, to hide them",
    "hetero_hvd/driver/membership/horovod_driver.py": "how much Horovod logs",
    "hetero_hvd/driver/queued/command_job.py": "settings, as the command line takes them",
    "hetero_hvd/driver/queued/cluster_owners.py": "settings, as the command line takes them",
    "hetero_hvd/driver/guard/told_command.py": "what the user's program inherits",
    "hetero_hvd/refusal.py": "whether our driver has started this process",
    "hetero_hvd/probes/benchmark_cache.py": "XDG_CACHE_HOME, as in every program",
    "hetero_hvd/probes/owner/owner_watch.py": "how CUDA numbers the GPUs",
    "hetero_hvd/probes/kernel/device_lease.py": "the folder that programs on a node share",
    "hetero_hvd/discovery/submission/queue_client.py": "what a job is given; the socket",
    "hetero_hvd/probes/sampling/shared_folder.py": "the folder that programs on a node share",
    "hetero_hvd/probes/sampling/follower.py": "what the sampler that it starts inherits",
    "hetero_hvd/worker/reproducible/requirements.py": "cuBLAS has read it, it is looked at",
    "hetero_hvd/remote/programs/examination_program.py": "what a worker there would have",
    "hetero_hvd/remote/programs/hardware_program.py": "the same",
    "hetero_hvd/run/sinks/sink.py": "credentials, which belong on no command line",
    "hetero_hvd/run/sinks/destinations/kubernetes_object.py": "where the API server of a pod is",
    "hetero_hvd/pod/network.py": "the address that others are told, which is looked at",
    "hetero_hvd/pod/resources.py": "what was granted, which is looked at",
    "hetero_hvd/slurm/programs.py": "what Slurm's programs inherit",
    "hetero_hvd/worker/site/sitecustomize.py": "runs before there is a package",
}
"""Who reads or writes environment variables, and which."""


def uses_environment(path):
    """Whether a file asks for environment variables, by whatever call."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names})
        for node in nodes_of(path)
    )


def test_the_environment_is_read_in_few_places():
    """What is set from outside is read once, checked there, and handed on as typed values."""
    found = {relative(path) for path in SOURCES if uses_environment(path)}
    product = {name for name in found if name.startswith("hetero_hvd/")}
    assert {n for n in product if not n.startswith(ENVIRONMENT_ROOMS)} == ENVIRONMENT.keys()


ASKS_FOR_WAIT_FREE = {
    "hetero_hvd/config/job.py": "its switch",
    "hetero_hvd/messages/launch.py": "its name among the modes",
    "hetero_hvd/messages/from_worker.py": "its name on the wire",
    "hetero_hvd/worker/options.py": "its switch and its learning rate",
    "hetero_hvd/worker/training_modes.py": "its class among the modes",
    "hetero_hvd/worker/recovery/reports.py": "its name on the wire",
    "hetero_hvd/worker/data/position.py": "advice to whoever resumes without it",
}
"""Who names the training mode; all others ask what follows, such as `shares_vary`."""


def test_a_training_mode_is_named_where_it_is_chosen():
    """Outside of its own room: what follows from a mode is a property, not a question for it."""
    found = {
        str(path.relative_to(CHECKOUT))
        for path in (CHECKOUT / "hetero_hvd").rglob("*.py")
        if "wait_free" in path.read_text() and path.parent.name != "wait_free"
    }
    assert found == ASKS_FOR_WAIT_FREE.keys()


def test_no_two_classes_share_a_name():
    """Nor does a private one have another's: whoever reads a name knows what is meant."""
    found = defaultdict(list)
    for path in (CHECKOUT / "hetero_hvd").rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(relative(path))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_no_two_modules_of_a_layer_share_a_name():
    """A layer is a folder of the package; its command `trace` may be that of the worker's trace."""
    package = CHECKOUT / "hetero_hvd"
    for layer in (folder for folder in package.iterdir() if folder.is_dir()):
        names = [path.stem for path in layer.rglob("*.py") if not path.stem.startswith("__")]
        assert sorted(names) == sorted(set(names)), layer.name


def test_callbacks_are_given_not_set():
    """No module sets one on another's object: they come in the constructor or in a call."""
    for path in (CHECKOUT / "hetero_hvd").rglob("*.py"):
        for node in nodes_of(path):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                name = getattr(target, "attr", "")
                assert is_own or not name.startswith("on_"), f"{relative(path)}: {name}"


def test_exit_codes_are_declared_in_one_place():
    """But for that of a script that is refused before there is a package: the same number."""
    found = {
        (relative(path), target.id, node.value.value)
        for path in (CHECKOUT / "hetero_hvd").rglob("*.py")
        for node in nodes_of(path)[0].body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.startswith("EXIT_")
    }
    elsewhere = {each for each in found if each[0] != "hetero_hvd/exit_codes.py"}
    site = "hetero_hvd/worker/site/sitecustomize.py"
    assert elsewhere == {(site, "EXIT_REFUSED", EXIT_REFUSED)}


def test_each_module_is_tested_somewhere():
    """By a file of its name, by one that imports it, or by what tests/README.md names for it."""
    tests = CHECKOUT / "tests"
    imported = set().union(*(names_imported_by(path) for path in tests.rglob("*.py")))
    named = {path.stem.removeprefix("test_") for path in tests.rglob("test_*.py")}
    _, _, table = (tests / "README.md").read_text().partition("tested through others")
    told = set(re.findall(r"\w+", " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    for path in sorted((CHECKOUT / "hetero_hvd").rglob("*.py")):
        module = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
        is_tested = path.stem in named | told or module in imported
        assert is_tested or path.stem.startswith("__"), relative(path)


def names_imported_by(path):
    """Modules, and what may be one in a package."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found
