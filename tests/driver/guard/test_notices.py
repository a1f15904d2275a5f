"""Who is told of an episode, how often, and what does no harm: real servers and programs."""

import base64
import contextlib
import http.server
import json
import os
import queue
import socket
import threading

import pytest

from hetero_hvd.config import GuardConfig
from hetero_hvd.config.variables import SET_FOR_GUARD_COMMAND
from hetero_hvd.driver.guard import notifier, told_command, webhook
from hetero_hvd.driver.guard.notices import Notices, notice_of
from hetero_hvd.driver.guard.notifier import Notifier
from hetero_hvd.driver.guard.told_command import ToldCommand
from hetero_hvd.driver.guard.webhook import Webhook
from hetero_hvd.errors import JobError, TransientError
from hetero_hvd.messages import GuardReported, WorkerId
from tests.leftovers import wait_until

EVENT = GuardReported(
    what="drained",
    node="alpha",
    device="GPU 0",
    uuid="GPU-1",
    reason="temperature",
    words="GPU 0 of alpha is hot",
    workers=(WorkerId("alpha", 0), WorkerId("alpha", 1)),
    is_new=True,
    num_drained=1,
)
NOTICE = notice_of(EVENT, "run-1")
SECONDS = 20.0


class Receiver(http.server.ThreadingHTTPServer):
    """Answers with the statuses that it is given, then with 204; keeps what it has heard."""

    daemon_threads = True

    def __init__(self, *statuses):
        super().__init__(("127.0.0.1", 0), Answering)
        self.statuses = list(statuses)
        self.heard = queue.Queue()
        self.url = f"http://user:s3cret@127.0.0.1:{self.server_port}/services/s3cret?key=s3cret"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Answering(http.server.BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self):
        """Called by http.server."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        told = (self.headers["Content-Type"], self.headers["Authorization"], json.loads(body))
        self.server.heard.put((self.path, *told))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        """Says nothing."""


def told_of(receiver, count):
    """So many notices that a receiver hears."""
    return [receiver.heard.get(timeout=SECONDS) for _ in range(count)]


@contextlib.contextmanager
def notices(config, said):
    """Those of a job with these settings."""
    made = Notices("run-1", config, said.append)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("failures", [[], [503], [500, 429, 408]])
def test_a_webhook_is_told_once_and_again_until_it_takes_it(failures):
    """As JSON, by POST; what it takes is not sent again."""
    said = []
    with Receiver(*failures) as receiver:
        hook = Webhook(receiver.url)
        way = Notifier(hook.deliver, hook.shown, said.append, first_retry_seconds=0.01)
        way.send(NOTICE)
        way.send(NOTICE | {"device": "GPU 1"})
        told = told_of(receiver, len(failures) + 2)
        way.close()
        assert receiver.heard.empty()
    login = "Basic " + base64.b64encode(b"user:s3cret").decode()
    assert told[0] == ("/services/s3cret?key=s3cret", "application/json", login, NOTICE)
    assert [body["device"] for *_, body in told[len(failures) :]] == ["GPU 0", "GPU 1"]
    assert len(said) == bool(failures), "one line until it works again"
    assert "s3cret" not in str(said)


REFUSED = {302: "status 302", 400: "status 400", 404: "status 404"}


@pytest.mark.parametrize("status", REFUSED)
def test_what_a_receiver_does_not_want_is_not_repeated(status):
    """Nor sent to wherever it points."""
    said = []
    with Receiver(status) as receiver:
        hook = Webhook(receiver.url)
        way = Notifier(hook.deliver, hook.shown, said.append)
        way.send(NOTICE)
        told_of(receiver, 1)
        wait_until(lambda: said, SECONDS, "the line")
        way.close()
    assert REFUSED[status] in said[0]
    assert "s3cret" not in said[0]


def test_a_receiver_that_never_answers_holds_nobody_up(monkeypatch):
    """Whoever sends goes on, the queue is bounded, and the end waits for a second at most."""
    monkeypatch.setattr(notifier, "MAX_WAITING", 3)
    said = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/s3cret"
        with notices(GuardConfig(webhook=url), said) as found:
            for _ in range(9):
                found.tell(EVENT)
            threads = [t for t in threading.enumerate() if t.name == "webhook at 127.0.0.1"]
            assert threads
            assert all(t.daemon for t in threads), "the driver's end does not wait for them"
    assert any("does not keep up" in line for line in said)
    assert "s3cret" not in str(said)


def test_nobody_there(monkeypatch):
    """It is given up after some tries, and the next notice is tried again."""
    monkeypatch.setattr(notifier, "MAX_TRIES", 3)
    tries, said = [], []

    def deliver(notice):
        tries.append(notice["device"])
        raise TransientError("does not answer")

    way = Notifier(deliver, "webhook", said.append, first_retry_seconds=0.001)
    way.send(NOTICE)
    way.send(NOTICE | {"device": "GPU 1"})
    wait_until(lambda: len(tries) == 6, SECONDS, "all tries")
    way.close()
    assert tries == ["GPU 0"] * 3 + ["GPU 1"] * 3
    assert said == ["guard: webhook does not answer; it is tried again; the training goes on"]


def test_a_port_where_nobody_listens_is_worth_another_try():
    """And the line does not show the URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TransientError, match="does not answer") as caught:
        Webhook(f"http://127.0.0.1:{port}/s3cret").deliver(NOTICE)
    assert "s3cret" not in str(caught.value)


def test_an_error_of_ours_is_a_line():
    """The thread lives on."""
    said, done = [], threading.Event()

    def deliver(notice):
        if notice["device"] == "GPU 0":
            raise ValueError("s3cret")
        done.set()

    way = Notifier(deliver, "webhook", said.append)
    way.send(NOTICE)
    way.send(NOTICE | {"device": "GPU 1"})
    assert done.wait(SECONDS)
    way.close()
    assert len(said) == 1
    assert "s3cret" not in said[0]


def test_a_command_finds_facts_in_its_environment(tmp_path):
    """Without a shell: nothing in its arguments is replaced."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nenv > "$1.new"; mv "$1.new" "$1"\n')
    program.chmod(0o700)
    said, target = [], tmp_path / "$HOME; touch x"
    with notices(GuardConfig(command=(str(program), str(target))), said) as found:
        found.tell(EVENT)
        wait_until(target.exists, SECONDS, "the end of the program")
    facts = dict(line.partition("=")[::2] for line in target.read_text().splitlines())
    assert {name: facts[name] for name in SET_FOR_GUARD_COMMAND} == {
        "HETERO_HVD_GUARD_RUN_ID": "run-1",
        "HETERO_HVD_GUARD_WHAT": "drained",
        "HETERO_HVD_GUARD_REASON": "temperature",
        "HETERO_HVD_GUARD_NODE": "alpha",
        "HETERO_HVD_GUARD_DEVICE": "GPU 0",
        "HETERO_HVD_GUARD_UUID": "GPU-1",
        "HETERO_HVD_GUARD_WORKERS": "alpha:0 alpha:1",
        "HETERO_HVD_GUARD_WORDS": "GPU 0 of alpha is hot",
        "HETERO_HVD_GUARD_DRAINED_DEVICES": "1",
        "HETERO_HVD_GUARD_REFUSED_DEVICES": "0",
    }
    assert facts["PATH"] == os.environ["PATH"]
    assert said == []


COMMANDS = {
    ("/nowhere/s3cret",): "cannot be started: No such file or directory",
    ("/etc/passwd",): "cannot be started: Permission denied",
    ("sh", "-c", "exit 3"): "has ended with exit code 3",
    ("sh", "-c", "sleep 60 & sleep 60"): "has not ended within 0.2 s, is killed",
}


@pytest.mark.parametrize(("command", "expected"), COMMANDS.items())
def test_a_command_that_fails_is_one_line(command, expected):
    """And it is not run again; nothing that it has started is left."""
    told = ToldCommand(command, timeout_seconds=0.2)
    with pytest.raises(JobError) as caught:
        told.deliver(NOTICE)
    assert str(caught.value) == expected


def test_a_program_that_runs_is_killed_at_the_end(tmp_path):
    """The driver leaves nothing behind."""
    mark, said = tmp_path / "pid", []
    command = ("sh", "-c", f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60")
    with notices(GuardConfig(command=command), said) as found:
        found.tell(EVENT)
        wait_until(mark.exists, SECONDS, "the program")
        found.tell(EVENT)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    mark.unlink()
    for thread in threading.enumerate():
        if thread.name == "command sh":
            thread.join(SECONDS)
    assert not mark.exists(), "what waits is not begun when the job is over"
    assert said == []


def test_what_a_change_leaves_alone_goes_on(tmp_path):
    """A program is not killed because there is a webhook now."""
    mark, done, said = tmp_path / "mark", tmp_path / "done", []
    command = ("sh", "-c", f"touch {mark}; until test -e {mark}.go; do sleep 0.05; done; >{done}")
    with notices(GuardConfig(command=command), said) as found, Receiver() as receiver:
        found.tell(EVENT)
        wait_until(mark.exists, SECONDS, "the program")
        found.follow(GuardConfig(command=command, webhook=receiver.url))
        (tmp_path / "mark.go").touch()
        wait_until(done.exists, SECONDS, "its end")
    assert said == []


def test_settings_may_change_while_the_job_runs():
    """Another receiver, then none."""
    said = []
    with Receiver() as first, Receiver() as second, notices(None, said) as found:
        found.tell(EVENT)
        for receiver in (first, second):
            found.follow(GuardConfig(webhook=receiver.url))
            found.tell(EVENT)
            told_of(receiver, 1)
        found.follow(None)
        found.tell(EVENT)
        assert first.heard.empty()
        assert second.heard.empty()
    assert said == []


def test_limits_of_time_are_declared():
    """Nothing waits for ever."""
    assert webhook.TIMEOUT_SECONDS + told_command.TIMEOUT_SECONDS < 120
