"""What an agent says of its node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from hetero_hvd.agent import service
from hetero_hvd.agent.figures import own_figures
from hetero_hvd.agent.service import (
    GOODBYE_SECONDS,
    AgentOptions,
    Announcer,
    _listening,
    signed_to_fit,
    summary_of,
)
from hetero_hvd.cli import main
from hetero_hvd.discovery.advert import Advert, Verifier
from hetero_hvd.discovery.unicast import AnnounceTarget
from hetero_hvd.messages.benchmark import DeviceMeasured, ModelMeasured, SizeMeasured, Speed
from hetero_hvd.probes import benchmark_cache
from hetero_hvd.probes.machine.hardware import allowed_cores
from hetero_hvd.probes.machine.processor import probe_processor
from hetero_hvd.probes.sampling.shared_folder import SharedFolder
from hetero_hvd.run.records.run_files import lock_folder
from hetero_hvd.security.cluster_key import make_key
from tests.discovery.test_advert import KEY, NOW, as_text, make
from tests.discovery.test_unicast import free_port, heard, listening
from tests.fake_nvml.library import build, environment
from tests.leftovers import wait_until


def test_a_node_sums_up_its_devices():
    """GPUs by model, else the cores that it may use; never more than an advert holds."""
    assert summary_of([], 3.5) == "3.5 cores"
    assert summary_of(["A", "B", "A"], 8) == "2 x A, 1 x B"
    assert len(summary_of([f"GPU {n}" for n in range(99)], 8)) == 128


def test_what_finds_no_room_in_an_advert_is_left_out():
    """Figures first, then words, then addresses; GPUs, by which workers are kept apart, never."""
    full = make(
        devices=tuple(f"GPU-{n:036}" for n in range(16)),
        addresses=tuple(f"fd00::{n:04}:1111:2222:3333" for n in range(8)),
        figures={f"{n} {'x' * 60}": 1.0 for n in range(8)},
        summary="s" * 128,
    )
    found = Verifier(KEY).check(as_text(signed_to_fit(KEY, full)), now_seconds=NOW)
    assert (found.devices, found.figures, found.summary) == (full.devices, {}, "")
    assert len(found.addresses) == 2


WIDEST = {
    "GPUs": (lambda n: f"GPU-{n:036}", 16),
    "parts of GPUs": (lambda n: f"MIG-{n:036}", 16),
    "parts of GPUs, as older drivers name them": (lambda n: f"MIG-GPU-{n:036}/13/10", 8),
}


@pytest.mark.parametrize(("uuid", "num_left"), WIDEST.values(), ids=WIDEST)
def test_every_node_finds_room_in_an_advert(uuid, num_left):
    """Whatever its name, its addresses and its GPUs: an agent that cannot announce would end."""
    full = make(
        name="n" * 64,
        machine="m" * 64,
        version="0.1.0.dev1234+g0123456789",
        devices=tuple(map(uuid, range(16))),
        addresses=tuple(f"fd00:1111:2222:3333:4444:5555:6666:{n:04}" for n in range(8)),
    )
    found = Verifier(KEY).check(as_text(signed_to_fit(KEY, full)), now_seconds=NOW)
    assert found.addresses == full.addresses[:1]
    assert found.devices == full.devices[:num_left]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache of our own: a function that keeps a speed, or a model's time, for a key."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    processor = f"{probe_processor().model}, 2 threads"
    here = {"device": processor, "uuid": "", "cores": f"{allowed_cores():g}"}

    def keep(flops=0.0, *, seconds=(), spread=0.0, **more):
        speed = {"dtype": "float32", "spread_ratio": spread, "num_repeats": 5}
        sizes = [
            SizeMeasured(local_batch_size=n, busy_seconds=s, spread_ratio=0.0, num_steps=9)
            for n, s in enumerate(seconds, start=1)
        ]
        curve = {"overhead_seconds": 0.0, "seconds_per_sample": 1.0}
        curve |= {"read_samples_per_second": None, "global_batch_size": 2, "micro_batch_size": 0}
        result = DeviceMeasured(
            device="d", versions={}, speeds=(Speed(what="copy", per_second=flops, **speed),)
        )
        if seconds:
            result = ModelMeasured(device="d", model="Linear 01", sizes=tuple(sizes), **curve)
        benchmark_cache.save(here | {"emulate": "None"} | more, result, is_valid=False)

    return keep


def test_the_figures_are_what_was_measured_on_this_device(kept):
    """A model at its best size; nothing emulated, of another device, or with other cores."""
    kept(1e9)
    kept(seconds=(0.5, 0.8), model="Linear 01")
    kept(2e9, emulate="{...}")
    kept(6e9, torch="noisy", spread=0.5)
    kept(3e9, cores="77")
    kept(4e9, device="Other CPU, 2 threads")
    kept(5e9, uuid="GPU-elsewhere")
    assert own_figures() == {"Linear 01": 2.5, "copy float32": 1e9}


def test_of_two_gpus_the_slower_one_counts_and_both_are_named(kept, tmp_path):
    """On a machine with the stand-in for NVIDIA's library."""
    kept(9e9, uuid="GPU-11111111-2222-3333-4444-555555555555")
    kept(2e9, uuid="GPU-66666666-7777-8888-9999-000000000000")
    ask = (
        "import json; from hetero_hvd.agent.figures import own_figures as f;"
        "from hetero_hvd.discovery.machine import gpu_uuids as u; print(json.dumps([f(), u()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env=environment(build(tmp_path)),
        check=True,
        capture_output=True,
    )
    figures, uuids = json.loads(done.stdout)
    assert figures == {"copy float32": 2e9}
    assert [uuid[:8] for uuid in uuids] == ["GPU-1111", "GPU-6666"]


def test_a_good_bye_is_said_several_times(monkeypatch):
    """To each address, signed anew, and in time beside a name that nobody answers."""
    gate, known = threading.Event(), socket.getaddrinfo

    def look_up(host, *more, flags=0, **named):
        if host == "nobody.test" and not flags:
            gate.wait()
        return known(host, *more, flags=flags, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def act():
        port = free_port()
        ear = await listening(port)
        targets = AnnounceTarget("127.0.0.1", port), AnnounceTarget("nobody.test", port)
        options = AgentOptions(
            key=KEY, name="a", slots=1, address="10.0.0.1", port=1, token=None, tls=None,
            version="1", announce_to=targets,
        )  # fmt: skip
        began = time.monotonic()
        await Announcer(options, 9388, 1, "summary").close()
        seconds = time.monotonic() - began
        found = await heard(ear, 3)
        await ear.close()
        gate.set()
        verifier = Verifier(KEY)
        return seconds, [verifier.check(text, now_seconds=time.time()) for _, text in found]

    seconds, adverts = asyncio.run(act())
    assert seconds < GOODBYE_SECONDS + 1
    assert [advert.leaves for advert in adverts] == [True] * 3


WRONG_FLAGS = {
    "everywhere": ["--address", "0.0.0.0"],  # noqa: S104 - is refused
    "everywhere in IPv6": ["--address", "::"],
    "a group": ["--address", "224.0.0.1"],
    "an interface": ["--address", "fe80::1%lo"],
    "all of them": ["--address", "255.255.255.255"],
    "one link": ["--address", "fe80::1"],
    "IPv4 in IPv6": ["--address", "::ffff:127.0.0.1"],
    "a name": ["--address", "localhost"],
    "a name that no node has": ["--name", "a."],
    "no name": ["--name", ""],
    "whom nobody can be": ["--announce-to", "[fe80::1%]:1"],
    "no host": ["--metadata-url", "http://:80", "--cloud", "aws"],
    "half a bracket": ["--metadata-url", "http://[::1", "--cloud", "aws"],
    "a port that cannot be": ["--metadata-url", "http://h:65536", "--cloud", "aws"],
    "a port in letters": ["--metadata-url", "http://h:http", "--cloud", "aws"],
    "a host that cannot be": ["--metadata-url", "http://a..b", "--cloud", "aws"],
    "too many": ["--announce-to", "h:1"] * 17,
}


@pytest.mark.parametrize("case", WRONG_FLAGS)
def test_where_nobody_could_reach_it_is_refused(case, tmp_path, capsys):
    """In one line: adverts of such an address are believed by nobody."""
    make_key(tmp_path / "key")
    assert main(["agent", "--key-file", str(tmp_path / "key"), *WRONG_FLAGS[case]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert WRONG_FLAGS[case][0] in line


PORTS = {
    "taken": (["--address", "127.0.0.1"], 75, "in use; does another agent run here?"),
    "of another machine": (["--address", "203.0.113.1"], 2, "it is no address of this machine"),
}


@pytest.mark.parametrize("case", PORTS)
def test_a_port_that_cannot_be_had_is_one_line(case, tmp_path, capsys):
    """What may pass has a code of its own, so that systemd starts the agent again."""
    flags, code, words = PORTS[case]
    make_key(tmp_path / "key")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main(["agent", "--key-file", str(tmp_path / "key"), "--port", port, *flags]) == code
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert f"port {port} of {flags[1]}: cannot listen: " in line
    assert words in line


def test_a_folder_of_another_agent_is_one_line(tmp_path, capsys):
    """It says what to do: two agents on one machine have one each."""
    make_key(tmp_path / "key")
    (tmp_path / "spool").mkdir()
    held = lock_folder(tmp_path / "spool")
    flags = ["--hub", "127.0.0.1:1", "--spool", str(tmp_path / "spool"), "--port", "0"]
    flags += ["--address", "127.0.0.1", "--key-file", str(tmp_path / "key")]
    assert main(["agent", *flags]) == 2
    os.close(held)
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "another agent has it; give it another folder" in line


STRANGE_GPUS = {
    "no part of a GPU": "MIG-" + "x" * 3000,
    "many such": ",".join(f"MIG-{n:0200}" for n in range(16)),
    "more than slots": ",".join(map(str, range(3000))),
    "the same again and again": "0," * 3000,
    "none": "-1",
    "not UTF-8": "\udcff",
    "an escape": "MIG-\x1b[31m",
}


@pytest.mark.parametrize("case", STRANGE_GPUS)
def test_whatever_names_the_gpus_the_advert_is_believed(case):
    """A driver would not use the node, and the agent would end."""
    visible = tuple(STRANGE_GPUS[case].split(","))
    options = AgentOptions(
        key=KEY,
        name="alpha",
        slots=None,
        address="127.0.0.1",
        port=0,
        token=None,
        tls=None,
        version="1",
        visible=visible,
    )

    async def act():
        async with _listening(options) as node:
            announcer = Announcer(options, node.port, node.num_slots, node.summary)
            return announcer._signed(("127.0.0.1",), leaves=False)

    found = Verifier(KEY).check(as_text(asyncio.run(act())), now_seconds=time.time())
    assert isinstance(found, Advert), found
    assert 1 <= found.slots <= 1024


@pytest.mark.parametrize(("boot", "is_told"), [("b-1", True), ("", False)])
def test_an_agent_tells_when_it_was_started_where_boots_are_told_apart(monkeypatch, boot, is_told):
    """Else a machine has one identity before and after a boot, and its clock begins at 0 again."""
    monkeypatch.setattr(service, "boot_id", lambda: boot)
    options = AgentOptions(
        key=KEY, name="a", slots=1, address="10.0.0.1", port=1, token=None, tls=None, version="1"
    )
    signed = Announcer(options, 9388, 1, "summary")._signed(("10.0.0.1",), leaves=False)
    found = Verifier(KEY).check(as_text(signed), now_seconds=time.time())
    assert (found.started_at_seconds > 0.0) == is_told


@pytest.mark.process
def test_an_agent_samples_its_node_and_tells(tmp_path):
    """Its GPUs too, under its own name; when it is killed, its sampler ends with it."""
    own = environment(build(tmp_path))
    (tmp_path / "token").write_text("t" * 20)
    (tmp_path / "token").chmod(0o600)
    assert main(["key", str(tmp_path / "key")]) == 0
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        port = end.getsockname()[1]
    words = ["--key-file", "key", "--name", "alpha", "--token-file", "token"]
    words += ["--address", "127.0.0.1", "--port", str(port)]
    vector = [sys.executable, "-m", "hetero_hvd", "agent", *words]
    url = f"http://127.0.0.1:{port}/metrics"
    shown = {"Authorization": "Bearer " + "t" * 20}
    request = urllib.request.Request(url, headers=shown)
    pages = [b""]

    def is_told():
        opened = urllib.request.urlopen  # of an address of ours
        with contextlib.suppress(OSError), opened(request, timeout=5) as answer:
            pages[0] = answer.read()
        return b"gpu_power_watts" in pages[0]

    with subprocess.Popen(vector, cwd=tmp_path, env=own, stderr=subprocess.DEVNULL) as agent:
        try:
            wait_until(is_told, 20, "its first sample")
        finally:
            agent.kill()
    known = b'device="0",node="alpha",uuid="GPU-11111111-2222-3333-4444-555555555555"'
    assert b"hetero_hvd_gpu_power_watts{" + known + b"} 350.5" in pages[0]
    shared = SharedFolder(tmp_path / "own")
    wait_until(lambda: (lock := shared.try_to_lock()) and not os.close(lock), 5, "its lock")
