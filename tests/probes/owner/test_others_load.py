"""What others use of the processors: by made-up processes, and by a real one."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from hetero_hvd.driver.output.signs import SignFilter
from hetero_hvd.messages import event_from_json
from hetero_hvd.probes.owner.others_load import OthersLoad
from tests.kit.checkout import CHECKOUT, variables

HUB = ["/usr/bin/python", "-m", "hetero_hvd", "hub"]
SUPERVISOR = ["python3", "-m", "hetero_hvd.supervisor"]
SHELL = ["bash"]
KTHREADD = 2
CASES = {
    "nobody": ({}, 0.0),
    "one that waits": ({10: (1, ["blender"], 10, 0.8)}, 0.9),
    "one that does little": ({10: (1, ["syslog"], 1, 0.8)}, 0.01),
    "an owner's program": ({10: (1, ["blender"], 200)}, 2.0),
    "a job": ({10: (1, HUB, 50), 11: (10, SUPERVISOR, 5), 12: (11, ["train"], 300)}, 0.0),
    "a command": ({10: (1, ["python", "/v/bin/hetero-hvd", "run"], 80)}, 0.0),
    "from a shell": ({9: (1, SHELL, 30), 10: (9, HUB, 100)}, 0.3),
    "a worker whose name is near": ({10: (1, ["python", "-m", "hetero_hvd_x"], 100)}, 1.0),
    "the kernel": ({10: (2, [], 100)}, 0.0),
}


def write(proc, processes, seconds):
    """Processes as the kernel shows them, after so long."""
    for pid, (parent, words, per_second, *waits) in processes.items():
        folder = proc / str(pid)
        folder.mkdir(exist_ok=True)
        ticks = int(per_second * seconds)
        flags = 0x00200040 if parent == KTHREADD else 0
        stat = f"{pid} (a) b) S {parent} 0 0 0 0 {flags} 0 0 0 0 {ticks} 0 0 0 0 0 0 0 {100 + pid}"
        (folder / "stat").write_text(stat)
        waited = int(1e9 * seconds * sum(waits))
        (folder / "schedstat").write_text(f"{int(per_second * seconds * 1e7)} {waited} 9")
        (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in words))


@pytest.mark.parametrize(("processes", "expected"), CASES.values(), ids=CASES)
def test_whose_load_it_is(tmp_path, processes, expected):
    """Jobs and what they start are ours; what was used before the first look does not count."""
    load = OthersLoad(tmp_path)
    for seconds in (1.0, 1.5, 2.0, 2.5):
        write(tmp_path, processes, seconds)
        found = load.look(seconds)
    assert found == pytest.approx(expected, abs=0.02)


def test_a_process_that_ends_is_no_negative_load(tmp_path):
    """Nor is one that comes counted from before it was there."""
    load = OthersLoad(tmp_path)
    write(tmp_path, {10: (1, ["a"], 100)}, 10.0)
    assert load.look(0.0) == 0.0
    for name in ("stat", "cmdline", "schedstat"):
        (tmp_path / "10" / name).unlink()
    write(tmp_path, {11: (1, ["b"], 100)}, 1.0)
    assert load.look(1.0) == pytest.approx(1.0)
    assert load.look(2.0) == 0.0


WISH = {"file": "/nowhere", "processors": 0.05, "idle_seconds": 1.0, "gpus": []}
BURN = "import time; end = time.monotonic() + 4\nwhile time.monotonic() < end: pass"


@pytest.mark.process
def test_a_real_owner_comes_and_goes(tmp_path):
    """In a process room of its own: others use this machine, too."""
    script = tmp_path / "room.sh"
    script.write_text(
        'burn() { sleep 1.5; "$PYTHON" -c "$BURN"; }\n'
        'burn < /dev/null &\n"$PYTHON" -m hetero_hvd.probes.owner.owner_watch "$WISH"\n'
    )
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces of users here")
    told = variables(PYTHON=sys.executable, BURN=BURN, WISH=json.dumps(WISH))
    signs, heard = SignFilter(), []
    with subprocess.Popen(
        [*alone, "sh", str(script)],
        cwd=CHECKOUT,
        env=told,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        deadline = time.monotonic() + 60
        while len(heard) < 3 and time.monotonic() < deadline:
            found = signs.feed(process.stdout.read1())[1].samples
            heard += [event_from_json(sample).words for sample in found]
        process.stdin.close()
        process.wait(10)
    assert [heard[0], heard[2]] == ["", ""]
    assert heard[1].startswith("others use ")
