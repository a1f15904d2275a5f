"""docs/guide/queue.md, carried out literally: each command, and what it prints."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import re
import shutil
import subprocess
import sys
import time

import msgspec.json  # noqa: F401 - what a command imports later another user could not read

import hetero_hvd.discovery.submission.queue_client
import hetero_hvd.discovery.submission.queue_link  # noqa: F401 - as above
from hetero_hvd.cli import main
from tests.hub.queue.queue_rig import QueueHub
from tests.kit.checkout import CHECKOUT, variables

PAGE = (CHECKOUT / "docs" / "guide" / "queue.md").read_text()
DEVICES = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
LINES = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
         for line in block.splitlines()]  # fmt: skip
NOBODY = 65534
TIME_LEFT = re.compile(r"; about \d+ (s|min) left")
"""What a job has told of itself by then."""


def steps():
    """Who says what, and what is printed then."""
    found = []
    for line in LINES:
        user, mark, command = line.partition("$ ")
        if mark and user in ("root", "ann", "bob"):
            found.append((user, command, []))
        else:
            found[-1][2].append(line)
    return found


def plain(text):
    """Without what may differ: the time that is left, and which of two equal devices a job has."""
    return re.sub(r"on 1 device: (alpha|beta):0", "on 1 device", TIME_LEFT.sub("", text))


class Guide:
    """The folder in which the commands are given; ann is this user, and so is bob where he can."""

    def __init__(self, folder):
        self.hub = QueueHub(folder)
        (folder / "cluster.key").unlink()
        (folder / "cluster.yaml").write_text(DEVICES)
        shutil.copy(CHECKOUT / "docs" / "examples" / "digits.py", folder / "tree")
        self.own = pwd.getpwuid(os.geteuid()).pw_name

    def say(self, user, command):
        """Give a command; gives what it prints."""
        words = command.split()
        if user == "root":
            return self._operate(words)
        if user == "bob" and words[2:] == ["cancel", "1"]:
            return self._refused(words[1:])
        place = self.hub.folder / "tree"
        done = subprocess.run(
            [sys.executable, "-m", "hetero_hvd", *words[1:], "--socket", self.hub.socket]
            if words[1] == "queue"
            else [sys.executable, "-m", "hetero_hvd", *words[1:]],
            cwd=place,
            env=variables(HETERO_HVD_QUEUE=str(self.hub.socket)),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def _operate(self, words):
        if words[:1] == ["kill"]:
            self.hub.kill()
        elif words[-1] == "&":
            assert words[1:-1] == ["hub", "--queue", "cluster.yaml"]
            self.hub.start()
        else:
            command = [sys.executable, "-m", "hetero_hvd", *words[1:]]
            subprocess.run(
                command, cwd=self.hub.folder, check=True, env=variables(), capture_output=True
            )
        return ""

    def _refused(self, words):
        """What another user is told, in a process of his."""
        if os.geteuid():
            return f"hetero-hvd: job 1: is of {self.own}, not of nobody\n"  # nobody else is here
        with contextlib.redirect_stdout(io.StringIO()):  # imports what others may not read
            main(["queue", "why", "1", "--socket", str(self.hub.socket)])
        told, tells = os.pipe()
        at = os.open(self.hub.socket.parent, os.O_RDONLY | os.O_DIRECTORY)  # pytest's are closed
        if not (child := os.fork()):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                main([*words, "--socket", f"/proc/self/fd/{at}/{self.hub.socket.name}"])
            os.write(tells, said.getvalue().encode())
            os._exit(0)
        os.close(tells)
        os.close(at)
        with os.fdopen(told) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text


def test_the_guide_is_so(tmp_path):
    """As soon as what it says is so; nothing else is ever refused."""
    guide = Guide(tmp_path)
    assert [user for user, _, _ in steps()].count("bob") >= 4
    try:
        for user, command, expected in steps():
            wanted = "\n".join(expected).replace("of ann", f"of {guide.own}")
            wanted = wanted.replace("not of bob", "not of nobody")
            deadline = time.monotonic() + 30
            while plain(said := guide.say(user, command).rstrip("\n")) != plain(wanted):
                assert " why " in command, (command, said, wanted)
                assert time.monotonic() < deadline, (command, said, wanted)
            if command.endswith("queue why 1") and "2 devices" in wanted:
                guide.hub.wait_for_text(1, "train together")
    finally:
        guide.hub.close()
