"""Orders to running jobs: which one is meant, and what killed ones leave behind."""

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from hetero_hvd.driver.network import control_socket as control
from hetero_hvd.driver.network.control_socket import ControlSocket, newest_run
from hetero_hvd.errors import JobError
from hetero_hvd.run.records.run_folder import run_folder
from hetero_hvd.security.local_sockets import short_path
from tests.driver.conftest import until


def killed(folder, *, at_seconds):
    """A run whose driver was killed: nobody is behind its socket."""
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as end, short_path(folder / control.NAME) as path:
        end.bind(path)
        end.listen()
    os.utime(folder / control.NAME, (at_seconds, at_seconds))


def test_the_socket_of_a_driver_on_another_machine_stays(tmp_path):
    """It shares the folder; from here nobody is behind its socket, but it holds its run."""
    for name in ("killed", "elsewhere"):
        killed(tmp_path / name, at_seconds=1e9)
    with run_folder(str(tmp_path / "elsewhere"), None):
        control.remove_dead(tmp_path)
        assert [path.parent.name for path in tmp_path.glob("*/*.sock")] == ["elsewhere"]
        with pytest.raises(JobError, match="no running job in"):
            newest_run(tmp_path)
    control.remove_dead(tmp_path)
    assert not list(tmp_path.glob("*/*.sock"))


ORDERS = {
    "no JSON": "x",
    "no object": "[]",
    "no such order": '{"sing": 1}',
    "two orders": '{"say": 1, "sing": 1}',
    "deep": "[" * 4000,
}


@pytest.mark.parametrize("line", ORDERS.values(), ids=ORDERS)
def test_what_is_no_order_is_answered_in_one_line(tmp_path, line):
    """With what is allowed; the driver goes on."""

    async def scenario():
        driver = ControlSocket(tmp_path, {"say": str})
        await driver.listen()
        with short_path(tmp_path / control.NAME) as path:
            reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line.encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(reader.readline(), 60))
        writer.close()
        await writer.wait_closed()
        driver.close()
        return answer

    said = "not understood: must be one line, {ORDER: VALUE}, of say"
    assert asyncio.run(scenario()) == {"error": said}


def num_sockets():
    """Open in this process: what probes have opened ends a moment later."""
    links = (os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())
    return sum("/socket:" in link for link in links)


def test_the_newest_run_is_one_that_lives(tmp_path):
    """A driver that was killed later than the others started takes no orders, and is not found."""
    runs = tmp_path / "runs"

    async def scenario():
        before = num_sockets()
        killed(runs / "2-killed", at_seconds=2e9)
        drivers = []
        for name in ("1-older", "3-newest"):
            (runs / name).mkdir()
            drivers.append(ControlSocket(runs / name, {"say": str}))
            await drivers[-1].listen()
        os.utime(runs / "1-older" / control.NAME, (1.5e9, 1.5e9))
        os.utime(runs / "3-newest" / control.NAME, (1.6e9, 1.6e9))
        assert await asyncio.to_thread(newest_run, runs) == runs / "3-newest"
        assert await asyncio.to_thread(control.order, runs / "3-newest", "say", "y") == "y"
        drivers[1].close()
        assert await asyncio.to_thread(newest_run, runs) == runs / "1-older"
        assert await asyncio.to_thread(control.order, runs / "1-older", "say", "x") == "x"
        drivers[0].close()
        with pytest.raises(JobError, match="no running job in"):
            await asyncio.to_thread(newest_run, runs)
        await until(lambda: num_sockets() <= before)

    asyncio.run(scenario())


def test_the_next_job_cleans_up_after_those_that_were_killed(tmp_path):
    """Beside it, and where it runs itself; a socket with a driver behind it stays."""

    async def scenario():
        before = num_sockets()
        for name in ("killed", "own"):
            killed(tmp_path / name, at_seconds=1e9)
        (tmp_path / "other").mkdir()
        other, own = (ControlSocket(tmp_path / name, {"say": str}) for name in ("other", "own"))
        await other.listen()
        await own.listen()
        there = {path.parent.name for path in tmp_path.glob(f"*/{control.NAME}")}
        assert there == {"other", "own"}
        for name in ("other", "own"):
            assert await asyncio.to_thread(control.order, tmp_path / name, "say", "x") == "x"
        other.close()
        own.close()
        await until(lambda: num_sockets() <= before)

    asyncio.run(scenario())
