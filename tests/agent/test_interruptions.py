"""The cloud takes a machine away: its agent hears of it, leaves, and comes back if it may stay."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hetero_hvd.agent.interruptions import ERRORS, PROVIDERS, Interruptions, Notice
from hetero_hvd.cli import main
from hetero_hvd.discovery.advert import Advert, Verifier
from hetero_hvd.discovery.listener import AdvertListener
from hetero_hvd.exit_codes import EXIT_NO_PLACE
from hetero_hvd.security.cluster_key import make_key, read_key
from tests.agent.test_pages import TOKEN, fetch

TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
ACTION = "/latest/meta-data/spot/instance-action"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
HEADERS = {
    TOKEN_PATH: ("X-aws-ec2-metadata-token-ttl-seconds", "21600"),
    ACTION: ("X-aws-ec2-metadata-token", "a token"),
    PREEMPTED: ("Metadata-Flavor", "Google"),
    NAME: ("Metadata", "true"),
    EVENTS: ("Metadata", "true"),
}


@pytest.fixture
def service():
    """A metadata service: path to answer in `answers`; what is not there is 404."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.asked.append((self.command, self.path))
            name, value = HEADERS.get(self.path, ("Host", None))
            found = self.answers.get(self.path)
            is_shown = value is None or self.headers.get(name) == value
            if found is None or not is_shown:
                self.send_error(404 if is_shown else 401)
            elif isinstance(found, int):
                self.send_response(found)
                self.send_header("Location", "http://example.invalid/")
                self.end_headers()
            elif isinstance(found, bytes):
                self.wfile.write(found)
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(found.encode())

        do_GET = do_PUT = answer  # noqa: N815 - as http.server calls them

        def log_message(self, *_):
            """Nothing."""

    Handler.answers = {TOKEN_PATH: "a token", NAME: "this-machine"}
    Handler.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    Handler.url = f"http://127.0.0.1:{server.server_port}"
    yield Handler
    server.shutdown()
    server.server_close()


def events(*found):
    """Azure's answer."""
    return json.dumps({"DocumentIncarnation": 1, "Events": found})


AT = "Mon, 23 Nov 2026 18:29:47 GMT"
AT_SECONDS = 1795458587.0


def event(kind, *names, at=AT, **more):
    """One of Azure's events."""
    return {"EventId": "1", "EventType": kind, "Resources": names, "NotBefore": at} | more


TOLD = {
    "nothing at Amazon": ("aws", {}, None),
    "a spot machine of Amazon's": (
        "aws",
        {ACTION: '{"action": "terminate", "time": "2026-11-23T08:22:00Z"}'},
        "terminate at 2026-11-23T08:22:00Z",
    ),
    "one that will hibernate": ("aws", {ACTION: '{"action": "hibernate"}'}, "hibernate at a time"),
    "nothing at Google": ("gcp", {PREEMPTED: "FALSE"}, None),
    "a spot machine of Google's": ("gcp", {PREEMPTED: "TRUE\n"}, "preempted"),
    "nothing at Azure": ("azure", {EVENTS: events()}, None),
    "a spot machine of Azure's": (
        "azure",
        {EVENTS: events(event("Preempt", "other", "this-machine"))},
        f"Preempt at {AT}",
    ),
    "another machine of its set": ("azure", {EVENTS: events(event("Preempt", "other"))}, None),
    "a pause of seconds": ("azure", {EVENTS: events(event("Freeze", "this-machine"))}, None),
    "a reboot behind a pause": (
        "azure",
        {EVENTS: events(event("Freeze", "this-machine"), event("Reboot", "this-machine"))},
        "Reboot at",
    ),
    "Azure without a name": (
        "azure",
        {NAME: None, EVENTS: events(event("Terminate", "other"))},
        "Terminate at",
    ),
    "lines in an answer": ("aws", {ACTION: '{"action": "a\\nb", "time": "x"}'}, "a time that is"),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_each_provider_tells(case, service):
    """Asked as its documentation says."""
    name, answers, expected = TOLD[case]
    service.answers |= answers
    found = PROVIDERS[name](service.url + "/").notice()
    assert (found is None) == (expected is None)
    assert found is None or found.words.startswith(expected)


TIMES = {
    "an event that comes": (event("Reboot"), AT_SECONDS),
    "one that has begun": (event("Reboot", EventStatus="Started"), 0.0),
    "one that has begun, without a time": (event("Reboot", at=""), 0.0),
    "no text": (event("Reboot", at=17), 0.0),
    "nothing": (event("Reboot", at=None), 0.0),
    "no time": (event("Reboot", at="soon"), 0.0),
    "a year too far": (event("Reboot", at="Mon, 23 Nov 99999 18:29:47 GMT"), 0.0),
}


@pytest.mark.parametrize("case", TIMES)
def test_when_azure_begins(case, service):
    """Not before a time, or at any moment, as with all whose time is not understood."""
    told, expected = TIMES[case]
    service.answers[EVENTS] = events(told)
    service.answers[NAME] = None
    assert PROVIDERS["azure"](service.url).notice().not_before_seconds == expected


def test_of_several_events_the_first_counts(service):
    """In whatever order they are listed."""
    later = event("Redeploy", "this-machine", at="Mon, 30 Nov 2026 18:29:47 GMT")
    service.answers[EVENTS] = events(later, event("Reboot", "this-machine"), later)
    found = PROVIDERS["azure"](service.url).notice()
    assert (found.words, found.not_before_seconds) == (f"Reboot at {AT}", AT_SECONDS)


def test_the_service_is_only_read(service):
    """An event that is approved begins at once."""
    service.answers[EVENTS] = events(event("Reboot", "this-machine"))
    PROVIDERS["azure"](service.url).notice()
    assert {method for method, _ in service.asked} == {"GET"}


def seen(*looks):
    """What is expected after each look: (notice, the time)."""
    found = Interruptions(None)
    states = []
    for notice, now_seconds in looks:
        found._see(notice, now_seconds)
        assert found.withdrawn.is_set() != found.expected.is_set()
        states.append(found.expected.is_set())
    return states


SOON = Notice("Reboot", AT_SECONDS)
LATER = Notice("Reboot", AT_SECONDS + 1000)
LEAVING = "the cloud takes this machine away"
WILL = "the cloud will take this machine away"
COMING = "the cloud leaves this machine where it is"
COURSES = {
    "at any moment": ([(Notice("x"), 0.0)] * 2, [True, True], [LEAVING]),
    "two minutes before, not a quarter of an hour": (
        [(SOON, AT_SECONDS - s) for s in (900, 898, 120.5, 120, 60, -5)],
        [False, False, False, True, True, True],
        [WILL, LEAVING],
    ),
    "put off in time": (
        [(SOON, AT_SECONDS - 900), (LATER, AT_SECONDS - 898), (LATER, AT_SECONDS)],
        [False, False, False],
        [WILL, WILL],
    ),
    "put off after it has left": (
        [(SOON, AT_SECONDS - 100), (LATER, AT_SECONDS - 98), (LATER, AT_SECONDS + 900)],
        [True, False, True],
        [LEAVING, WILL, COMING, LEAVING],
    ),
    "cancelled in time": ([(SOON, 0.0), (None, 2.0), (None, 4.0)], [False] * 3, [WILL]),
    "cancelled": ([(SOON, AT_SECONDS), (None, AT_SECONDS + 2)], [True, False], [LEAVING, COMING]),
}


@pytest.mark.parametrize("case", COURSES)
def test_when_it_leaves_and_comes_back(case, caplog):
    """Each change is one line."""
    looks, expected, lines = COURSES[case]
    assert seen(*looks) == expected
    assert [record.getMessage().split(" (")[0].split(":")[0] for record in caplog.records] == lines


BROKEN = {
    "not JSON": ("aws", {ACTION: "<html>"}),
    "a list": ("aws", {ACTION: "[]"}),
    "deep": ("aws", {ACTION: "[" * 60_000}),
    "not UTF-8": ("gcp", {PREEMPTED: b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe"}),
    "an error": ("gcp", {PREEMPTED: 500}),
    "another place": ("gcp", {PREEMPTED: 302}),
    "nothing there": ("gcp", {}),
    "a web page": ("gcp", {PREEMPTED: "<html>"}),
    "no HTTP": ("gcp", {PREEMPTED: b"\0\1\2"}),
    "cut off": ("gcp", {PREEMPTED: b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nTR"}),
    "Azure without events": ("azure", {}),
    "an answer without events": ("azure", {EVENTS: "{}"}),
    "nothing for events": ("azure", {EVENTS: '{"Events": null}'}),
    "no list of events": ("azure", {EVENTS: '{"Events": 5}'}),
    "no list of machines": ("azure", {EVENTS: '{"Events": [{"Resources": 5}]}'}),
    "no name of an event": (
        "azure",
        {EVENTS: '{"Events": [{"EventType": ["x"], "Resources": ["this-machine"]}]}'},
    ),
    "events of another kind": ("azure", {EVENTS: '{"Events": [1]}'}),
    "no right to ask": ("aws", {TOKEN_PATH: ""}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_service_that_is_none_is_an_error(case, service):
    """Of the kinds that a watch outlives."""
    name, answers = BROKEN[case]
    service.answers |= answers
    with pytest.raises(ERRORS):
        PROVIDERS[name](service.url).notice()


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_place_where_nothing_is_found_is_no_service(name, service, monkeypatch):
    """As where a proxy answers in its place: what was told before is not withdrawn by that."""
    monkeypatch.setattr(service, "answers", {})
    for path in list(HEADERS):
        monkeypatch.delitem(HEADERS, path)
    with pytest.raises(ERRORS):
        PROVIDERS[name](service.url).notice()


def test_a_new_token_is_asked_for_when_the_old_one_is_refused(service):
    """As after a machine has slept."""
    amazon = PROVIDERS["aws"](service.url)
    amazon._token = "old"  # noqa: S105 - none
    amazon._token_at_seconds = time.monotonic()
    with pytest.raises(ERRORS):
        amazon.notice()
    assert amazon.notice() is None
    assert service.asked.count(("PUT", TOKEN_PATH)) == 1


def test_no_proxy_of_the_environment_is_asked(service, monkeypatch):
    """It would tell of itself."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    service.answers[PREEMPTED] = "TRUE"
    assert PROVIDERS["gcp"](service.url).notice() == Notice("preempted")


def test_trouble_is_told_once_and_changes_nothing(monkeypatch, caplog):
    """A notice stands until the service says otherwise."""
    gone = Notice("gone")
    answers = [OSError("down"), OSError("down"), gone, gone, OSError("down"), None, None]
    monkeypatch.setattr("hetero_hvd.agent.interruptions.LOOK_SECONDS", 0.0)
    states = []

    class Service:
        def notice(self):
            states.append(self.found.expected.is_set())
            if not answers:
                raise KeyError("the test is over")
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    async def act():
        service = Service()
        service.found = Interruptions(service)
        with pytest.raises(KeyError):
            await service.found.watch()
        assert service.found.asked.is_set()

    with caplog.at_level(logging.WARNING):
        asyncio.run(act())
    assert states == [False, False, False, True, True, True, False, False]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines] == [
        "the cloud's metadata service does not tell of interruptions",
        "the cloud takes this machine away (gone)",
        "the cloud leaves this machine where it is",
    ]


WRONG = {
    "an unknown cloud": ["--cloud", "moon"],
    "an address alone": ["--metadata-url", "http://127.0.0.1"],
    "no http": ["--cloud", "aws", "--metadata-url", "file:///etc/passwd"],
    "a path": ["--cloud", "aws", "--metadata-url", "http://h/x"],
    "a password": ["--cloud", "aws", "--metadata-url", "http://u:secret@h"],
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_flags_are_one_line(case, tmp_path, capsys):
    """Exit code 2."""
    make_key(tmp_path / "key")
    command = ["agent", "--key-file", str(tmp_path / "key"), *WRONG[case]]
    try:
        code = main(command)
    except SystemExit as ended:  # argparse's
        code = ended.code
    assert code == 2
    (*_, line) = capsys.readouterr().err.splitlines()
    assert "--cloud" in line or "--metadata-url: found" in line
    assert "secret" not in line


def free_port(kind):
    """A port that nobody has."""
    with socket.socket(socket.AF_INET, kind) as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


class Ear:
    """Hears one agent, as a driver does."""

    def __init__(self, key):
        self.port = free_port(socket.SOCK_DGRAM)
        self._ear = AdvertListener(self.port)
        self._ear.ask = lambda: None
        self._verifier = Verifier(key)

    async def __aenter__(self):
        await self._ear.open()
        return self

    async def __aexit__(self, *_):
        await self._ear.close()

    def heard(self):
        """Whether it left, for each advert since the last time."""
        checked = [self._verifier.check(t, now_seconds=time.time()) for _, t in self._ear.take()]
        return [advert.leaves for advert in checked if isinstance(advert, Advert)]

    async def until(self, *, leaves):
        """Until it is here, or leaves; how long that took."""
        began = time.monotonic()
        while time.monotonic() - began < 30:
            if leaves in self.heard():
                return time.monotonic() - began
            await asyncio.sleep(0.02)
        raise AssertionError(f"no advert with leaves={leaves}: {self._verifier.ignored}")


async def for_questions(service, number):
    """Until the cloud was asked so often from now on."""
    goal = len(service.asked) + number
    async with asyncio.timeout(30):
        while len(service.asked) < goal:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


def ask_for_a_worker(port, key):
    """As a driver does."""
    command = [sys.executable, "-m", "hetero_hvd.agent.client", "127.0.0.1", str(port), key]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=30)


def agent_of(service, folder, port, ear):
    """Start an agent that asks this service, and that this ear hears."""
    command = [sys.executable, "-m", "hetero_hvd", "agent", "--key-file", folder / "key"]
    command += ["--announce-to", f"127.0.0.1:{ear.port}", "--address", "127.0.0.1"]
    command += ["--token-file", folder / "token", "--port", str(port), "--cloud", "gcp"]
    command += ["--metadata-url", service.url, "--name", "spot"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stderr=log)


@pytest.mark.process
def test_an_agent_leaves_before_its_machine_and_comes_back_with_it(service, tmp_path):
    """It says good-bye when a notice comes, and announces itself when that is withdrawn.

    Meanwhile it lives, for probes, but starts nothing; nor does one that is started anew then.
    """
    make_key(tmp_path / "key")
    (tmp_path / "token").write_bytes(TOKEN)
    (tmp_path / "token").chmod(0o600)
    service.answers[PREEMPTED] = "FALSE"
    port = free_port(socket.SOCK_STREAM)

    start = partial(agent_of, service, tmp_path, port)

    async def act():
        codes = []
        async with Ear(read_key(tmp_path / "key")) as ear:
            agent = start(ear)
            try:
                await ear.until(leaves=False)
                service.answers[PREEMPTED] = "TRUE"
                seconds = await ear.until(leaves=True)
                await for_questions(service, 1)
                assert (await fetch(port, "/alive"))[0] == 200
                asked = await asyncio.to_thread(ask_for_a_worker, port, tmp_path / "key")
                codes.append(asked.returncode)
                assert False not in ear.heard()
                agent.terminate()
                codes.append(await asyncio.to_thread(agent.wait, 20))
                agent = start(ear)
                await for_questions(service, 2)
                assert ear.heard() == []
                service.answers[PREEMPTED] = "FALSE"
                await ear.until(leaves=False)
                agent.send_signal(signal.SIGTERM)
                await ear.until(leaves=True)
                codes.append(await asyncio.to_thread(agent.wait, 20))
            finally:
                agent.kill()
                agent.wait()
        return seconds, codes, asked.stdout

    seconds, codes, told = asyncio.run(act())
    assert codes == [EXIT_NO_PLACE, 0, 0]
    assert "the cloud takes its machine away" in told
    assert seconds < 15
    log = (tmp_path / "log").read_text()
    assert log.count("the cloud takes this machine away (preempted): leaving") == 2
    assert log.count("the cloud leaves this machine where it is: coming back") == 1
    assert "Traceback" not in log
