"""Installing on machines that have Python and sshd, and nothing else; whatever fails on the way."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import tarfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.errors import NodeError
from hetero_hvd.remote import installation
from hetero_hvd.remote.bundle import Bundle, make_bundle
from hetero_hvd.remote.installation import install_all
from hetero_hvd.remote.node_program import NodeProgram
from hetero_hvd.remote.programs import environment_program
from hetero_hvd.remote.programs.environment_program import MARK
from tests.kit.virtual_cluster import LOGIN_HOME
from tests.leftovers import wait_until

pytestmark = pytest.mark.cluster
SMALL = make_bundle(["msgspec"], imports=["msgspec"])


@pytest.fixture
def host(bare_cluster):
    """A machine on which nothing is installed, whatever was before."""
    over_ssh(bare_cluster["gamma"], "rm -rf .local other")
    return bare_cluster["gamma"]


def over_ssh(host, command):
    """What a shell command prints on a host."""
    done = subprocess.run(host.ssh(command), check=True, capture_output=True, text=True)
    return done.stdout


def node_of(host, **more):
    """The host as nodes.yaml has it, without an environment."""
    keys = host.node(**more)
    given = {"env": {}, "python": None} | more
    return NodeConfig(**(keys | given))


def install(*nodes, bundle=SMALL, is_forced=False):
    """Install on nodes; what became of each, and what was told."""
    said = []
    return install_all(nodes, bundle, said.append, is_forced=is_forced), said


def installed(host):
    """What the environment of a host can import, or why not."""
    ask = "import msgspec; print(msgspec.__version__)"
    return over_ssh(host, f"{installation.INSTALLED}/bin/python -c '{ask}' 2>&1 || true").strip()


def test_a_bare_machine_has_no_compiler_and_not_this_checkout(host):
    """It is what it is taken for."""
    assert over_ssh(host, "g++ --version || make --version || echo none") == "none\n"
    assert over_ssh(host, f"ls {Path(__file__).parents[2]}; pwd; ls") == f"{LOGIN_HOME}\n"


def test_it_is_there_afterwards_and_a_second_time_nothing_is_sent(bare_cluster, host):
    """On several nodes at once; the environment is a complete one."""
    nodes = [node_of(bare_cluster[name]) for name in ("gamma", "delta")]
    found, said = install(*nodes)
    assert [(one.node, one.is_good) for one in found] == [("gamma", True), ("delta", True)]
    assert [line for line in said if "gamma: sending" in line]
    assert installed(host) == SMALL.versions["msgspec"]
    again, said = install(*nodes)
    assert (all(one.is_good for one in again), said) == (True, [])
    assert again[0].what.startswith("is there already: ")


def test_what_is_not_asked_for_again_is_named_as_gone(host):
    """Who forgets a `--with` reads it there, not in the traceback of a worker."""
    more = make_bundle(["msgspec", "iniconfig"], imports=["iniconfig"])
    first, second, third = (install(node_of(host), bundle=one)[0][0] for one in (more, SMALL, more))
    assert "not there any more" not in first.what
    assert second.what.endswith("not asked for: iniconfig (--with iniconfig)")
    assert "not there any more" not in third.what


def test_two_drivers_at_once_do_not_disturb_each_other(host, monkeypatch):
    """Nor do two names of one machine: the second waits, however long, and finds it there."""
    monkeypatch.setattr(installation, "LOOK_SECONDS", 5.0)
    whole = Bundle.write

    def slowly(*arguments):
        time.sleep(6.0)
        whole(*arguments)

    monkeypatch.setattr(Bundle, "write", slowly)
    found, said = install(node_of(host), node_of(host, name="other"))
    assert all(one.is_good for one in found)
    assert len([line for line in said if "somebody else is installing at" in line]) == 1
    assert len([line for line in said if "sending" in line]) == 1
    assert installed(host) == SMALL.versions["msgspec"]


def test_the_second_does_not_wait_for_ever(host, monkeypatch):
    """It says for how long it has, and what to do."""
    send = installation._send

    def slowly(*given):
        time.sleep(4)
        send(*given)

    monkeypatch.setattr(installation, "_send", slowly)
    monkeypatch.setattr(installation, "WAIT_SECONDS", 0.5)
    place = {"python": "waits/env/bin/python"}
    found, _ = install(node_of(host, **place), node_of(host, name="other", **place))
    (late,) = [one for one in found if not one.is_good]
    assert "somebody else has been installing at" in late.what
    assert "try again" in late.remedy


def test_a_program_ends_whose_driver_says_nothing(host, monkeypatch):
    """As that of a link that was cut, before the files and in their midst: others can install."""
    source = Path(environment_program.__file__).read_text()
    source = source.replace("SILENCE_SECONDS = 60", "SILENCE_SECONDS = 1")
    monkeypatch.setattr(Path, "read_bytes", lambda _path: source.encode())
    place = {"path": installation.INSTALLED}
    order = place | {"fingerprint": "", "num_files": 1, "imports": []}
    base = (f"python{SMALL.python}",)
    with NodeProgram(node_of(host), "environment_program", interpreters=base) as program:
        program.ask("look", place, seconds=20)
        with pytest.raises(NodeError):
            program.ask("look", place, seconds=20, payload=lambda _input: program._process.wait(20))
    with NodeProgram(node_of(host), "environment_program", interpreters=base) as program:
        program.ask("look", place, seconds=20)
        with pytest.raises(NodeError, match="nothing came for 1 s"):
            program.ask("install", order, seconds=20, payload=lambda part: part.write(b"\0" * 99))
    monkeypatch.undo()
    assert install(node_of(host))[0][0].is_good
    assert len(over_ssh(host, "ls .local/share/hetero_hvd").split()) == 2


def test_where_nodes_yaml_has_its_python(host):
    """It is made there, however often; the one before stays, and nothing half-made."""
    node = node_of(host, python=f"{LOGIN_HOME}/other/env/bin/python")
    older = "other/env-a2345678"
    over_ssh(host, f"mkdir -p other/env-of-mine {older}; echo {{}} >{older}/{MARK}")
    for _ in range(4):
        found, _ = install(node, is_forced=True)
        assert found[0].is_good
    assert over_ssh(host, "other/env/bin/python -c 'import msgspec; print(1)'") == "1\n"
    folders = over_ssh(host, "ls other").split()
    assert len(folders) == 4  # the link, two environments, and what is not ours
    assert "env-of-mine" in folders


def cut_in_the_midst(host, monkeypatch):
    """End all connections of a host when part of the files has been sent."""

    def write(_bundle, stream, _on_bytes):
        part = tarfile.TarInfo("msgspec/large.py")
        part.size = 2**30
        stream.write(part.tobuf())
        for pid in host.sshds()[1]:
            os.kill(pid, signal.SIGKILL)
        for _ in range(1000):
            stream.write(bytes(2**16))

    monkeypatch.setattr(Bundle, "write", write)


def half_of_the_files(_host, monkeypatch):
    """An archive that ends early, between two files."""
    whole = Bundle.write

    def write(bundle, stream, on_bytes):
        half = dict(list(bundle.files.items())[: len(bundle.files) // 2])
        whole(replace(bundle, files=half), stream, on_bytes)

    monkeypatch.setattr(Bundle, "write", write)


def no_room(_host, monkeypatch):
    """More is needed than any disk has."""
    monkeypatch.setattr(installation, "ROOM", 1e12)


def file_is_gone(_host, monkeypatch):
    """Another program removes a file here meanwhile."""
    whole = Bundle.write

    def write(bundle, stream, on_bytes):
        gone = bundle.files | {"msgspec/gone.py": Path("/nowhere/gone.py")}
        whole(replace(bundle, files=gone), stream, on_bytes)

    monkeypatch.setattr(Bundle, "write", write)


def other_processor(_host, monkeypatch):
    """The driver's machine is of another kind."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")


def stopped(host, monkeypatch):
    """Its sshd hangs."""
    sshd, _ = host.sshds()
    os.kill(sshd, signal.SIGSTOP)
    undo = monkeypatch.undo
    monkeypatch.setattr(installation, "LOOK_SECONDS", 1.0)
    monkeypatch.setattr(monkeypatch, "undo", lambda: (os.kill(sshd, signal.SIGCONT), undo()))


def no_client(_host, monkeypatch):
    """There is no ssh on the driver's machine."""
    monkeypatch.setenv("PATH", "/nowhere")


def nothing(_host, _monkeypatch):
    """Nothing is changed."""


FAULTS = {
    "unknown name": (nothing, {"address": "no-such-host.invalid"}, "is not known here", "address"),
    "refused": (nothing, {"port": 9}, "nothing listens at", "start sshd"),
    "unknown host key": (
        nothing,
        {"ssh_options": {"UserKnownHostsFile": "/dev/null", "StrictHostKeyChecking": "yes"}},
        "its host key is not known",
        "ssh -p 22 root@",
    ),
    "key not accepted": (nothing, {"user": "daemon"}, "does not let daemon in", "ssh-copy-id"),
    "wrong option": (nothing, {"ssh_options": {"Nonsense": "yes"}}, "nonsense", "ssh_options"),
    "no client": (no_client, {}, "no ssh client", "openssh-client"),
    "sshd hangs": (stopped, {}, "no answer in 1 s", "hangs"),
    "python of no environment": (nothing, {"python": "/opt/python"}, "environment", "PATH/bin"),
    "path with ~": (nothing, {"python": "~bob/env/bin/python"}, "is not looked up", "write ~/"),
    "file that is gone here": (file_is_gone, {}, "cannot be read here: No such", ""),
    "python above an environment": (nothing, {"python": "x/../bin/python"}, "environment", "PATH"),
    "environment of others": (nothing, {"python": "/usr/bin/python3"}, "not made by", "leave it"),
    "no permission": (nothing, {"python": "/proc/x/bin/python"}, "No such file", "correct that"),
    "link to a disk that is not there": (
        nothing,
        {"python": "elsewhere/bin/python"},
        "not made by",
        "leave it",
    ),
    "no room": (no_room, {}, "are free at", "make room"),
    "other processor": (other_processor, {}, "its processor is", "by hand"),
    "cut in the midst": (cut_in_the_midst, {}, "the connection broke", "as it was"),
    "half of the files": (half_of_the_files, {}, "files came", "correct that"),
}


LISTED = f"{installation.INSTALLED}/bin/python -c 'import msgspec' && ls .local/share/hetero_hvd"
"""For a host's shell: whether the environment works, and what lies beside it."""


@pytest.fixture(scope="module")
def equipped(bare_cluster):
    """A host with an environment, and what is listed there."""
    host = bare_cluster["delta"]
    over_ssh(host, "ln -sfn /mnt/not-there/env elsewhere")
    assert install(node_of(host))[0][0].is_good
    return host, over_ssh(host, LISTED)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_line_and_leaves_what_was_there(equipped, monkeypatch, fault):
    """The fact and what to do; the earlier environment works, and nothing else is left."""
    host, before = equipped
    happen, keys, what, remedy = FAULTS[fault]
    with monkeypatch.context() as patch:
        happen(host, patch)
        ((found,), _) = install(node_of(host, **keys), is_forced=True)
    assert not found.is_good
    assert what in found.what
    assert remedy in found.remedy
    assert "\n" not in found.what + found.remedy
    with suppress(AssertionError):
        wait_until(lambda: over_ssh(host, LISTED) == before, 8, "cleaning up")
    assert over_ssh(host, LISTED) == before


MISFITS = {
    "other Python": (
        {"python": "3.10"},
        "no Python that fits; found: Python 3.",
        "python3.10-venv",
    ),
    "cannot be imported": ({"imports": ("no_such_module",)}, "No module named", "correct"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_software_that_does_not_fit_is_refused(host, misfit):
    """Nothing is left of it, and no environment that only seems to be one."""
    changes, what, remedy = MISFITS[misfit]
    ((found,), _) = install(node_of(host), bundle=replace(SMALL, **changes))
    assert not found.is_good
    assert what in found.what
    assert remedy in found.remedy
    left = over_ssh(host, "ls .local/share/hetero_hvd 2>/dev/null || true")
    assert left == ""
