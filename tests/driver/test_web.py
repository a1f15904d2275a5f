"""The driver's HTTP side: who may look, who may give orders, what the page shows."""

import asyncio
import io
import json
import socket
import threading
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.core.view.live import LiveState, LiveView, WorkerView
from hetero_hvd.driver.http_service import HttpService
from hetero_hvd.errors import ConfigError, JobError, UserError
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.web import Web, event_streams, server
from hetero_hvd.run.web.app import Sources
from hetero_hvd.run.web.source import drained, source_of

READ, OPERATE = "r" * 20, "o" * 20
SENTENCE = "gamma:0 is the slowest: 0.25 of alpha:0's speed"


class Job:
    """A server with sources of its own, in a loop of its own."""

    def __init__(self, folder, **settings):
        self.orders = []
        self.folder = folder
        self.state = LiveState(
            run_id="demo",
            state="training",
            verdict=[SENTENCE],
            workers=[WorkerView(name="gamma:0", share=36, phases={"backward": 0.1})],
            throughput=[(0.0, 10.0), (1.0, 20.0)],
            events=[(0.0, "<b>not markup</b>")],
        )
        self.num_events = 1
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.web = Web(JobConfig(**settings), folder)
        self._call(self.web.listen(self._sources()))

    def _sources(self):
        return Sources(
            state=lambda: self.state,
            num_events=lambda: self.num_events,
            status=lambda: {"state": "training"},
            targets=lambda: [{"targets": [self.web.target], "labels": {}}],
            drain=self._drain,
            stop=lambda: self.orders.append("stop") or "stopped",
        )

    def _drain(self, target):
        if target == "nobody":
            raise UserError("no such node")
        self.orders.append(target)
        return f"{target} leaves"

    def _call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def fetch(self, path, *, token=None, body=None, host=None):
        """Code and body of an answer."""
        request = urllib.request.Request(self.web.url + path, data=body)  # noqa: S310 - our own
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        if host:
            request.add_header("Host", host)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def close(self):
        """End it all."""
        self._call(self.web.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def start(tmp_path):
    """Starts servers."""
    jobs = []

    def make(**settings):
        jobs.append(Job(tmp_path, **settings))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def tokens(tmp_path):
    """Settings with a token for each role."""
    settings = {}
    for setting, token in (("http_token_file", READ), ("http_operate_token_file", OPERATE)):
        path = tmp_path / setting
        path.write_text(token + "\n")
        path.chmod(0o600)
        settings[setting] = str(path)
    return settings


def test_without_tokens_everybody_here_may_look_and_nobody_may_give_orders(start):
    """The loopback reads; /drain and /stop need a token that nobody has set."""
    job = start()
    assert job.fetch("/status") == (200, '{"state":"training"}')
    assert json.loads(job.fetch("/state")[1])["verdict"] == [SENTENCE]
    assert json.loads(job.fetch("/sd")[1])[0]["targets"] == [job.web.target]
    assert job.fetch("/metrics")[0] == 404
    assert job.fetch("/stop", body=b"{}")[0] == 401
    assert job.orders == []


def test_a_viewer_too_many_is_refused(start, monkeypatch):
    """With a reason; other questions are answered."""
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 0)
    job = start()
    code, told = job.fetch("/events")
    assert (code, "viewers are connected already" in told) == (503, True)
    assert job.fetch("/status")[0] == 200


def test_each_role_has_its_token(start, tokens):
    """Looking needs either token, orders the second one; the page itself holds no data."""
    job = start(**tokens)
    assert [job.fetch(path)[0] for path in ("/", "/live.js", "/live.css")] == [200] * 3
    for path in ("/state", "/status", "/events", "/metrics", "/sd"):
        assert job.fetch(path)[0] == 401
        assert job.fetch(path, token="x" * 20)[0] == 401
    assert job.fetch("/status", token=READ)[0] == job.fetch("/status", token=OPERATE)[0] == 200
    order = b'{"target": "beta"}'
    assert job.fetch("/drain", token=READ, body=order)[0] == 401
    assert job.orders == []
    assert job.fetch("/drain", token=OPERATE, body=order) == (200, '{"done":"beta leaves"}')
    assert job.fetch("/drain", token=OPERATE, body=b'{"target": "nobody"}')[0] == 409
    assert job.fetch("/stop", token=OPERATE, body=b"")[0] == 200
    assert job.orders == ["beta", "stop"]


@pytest.mark.parametrize(
    ("body", "code"), [(b"[" * 5000, 413), (b"[]", 400), (b"{", 400), (b"{}", 400), (b"\xff", 400)]
)
def test_a_hostile_order_is_refused(start, tokens, body, code):
    """Oversized or malformed bodies change nothing."""
    job = start(**tokens)
    assert job.fetch("/drain", token=OPERATE, body=body)[0] == code
    assert job.orders == []


def test_all_that_it_answers_is_described(start, tokens):
    """In one document for everybody; each path that it names is there."""
    job = start(**tokens)
    document = json.loads(job.fetch("/v1/openapi.json")[1])
    paths = document["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == {
        "/drain", "/stop", "/trace",
    }  # fmt: skip
    read = {path for path, methods in paths.items() if "get" in methods} - {"/events"}
    assert read == {"/state", "/status", "/metrics", "/sd", "/plots", "/advice", "/runs"}
    for path in read:
        code, _ = job.fetch(path, token=READ)
        assert str(code) in paths[path]["get"]["responses"]
    assert {"LiveState", "TraceOrder", "RequestProblem"} <= document["components"]["schemas"].keys()


def test_another_name_for_this_machine_is_refused(start):
    """A page elsewhere that lets its name point to the loopback reads nothing."""
    job = start()
    assert job.fetch("/state", host="evil.example:80")[0] == 421
    assert job.fetch("/", host="evil.example")[0] == 421
    assert job.fetch("/state", host="localhost:80")[0] == 200


def test_a_half_open_connection_is_cut(start, monkeypatch):
    """Who never completes a request is cut off, and endless headers are refused."""
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.2)
    job = start()
    address, port = job.web.target.split(":")
    with socket.create_connection((address, int(port)), timeout=10) as end:
        end.sendall(b"GET /state HTTP/1.1\r\nHost: 127.")
        assert end.recv(1) == b"" or pytest.fail("not cut")
    with socket.create_connection((address, int(port)), timeout=10) as end:
        end.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 2 * server.MAX_HEADER_BYTES)
        assert end.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize(
    ("mode", "content", "words"),
    [(0o644, READ, "0600"), (0o600, "short", "16"), (0o600, "é" * 9, "16")],
)
def test_a_careless_token_file_is_refused(tmp_path, mode, content, words):
    """Readable by others, or too short: one line, before anything listens."""
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=words):
        Web(JobConfig(http_token_file=str(path)), tmp_path)


def test_other_addresses_need_a_token():
    """Listening beyond this machine without a token is refused in the settings."""
    with pytest.raises(ConfigError, match="unless http_token_file is given"):
        JobConfig(http_address="0.0.0.0")  # noqa: S104 - refused
    with pytest.raises(ConfigError, match="together"):
        JobConfig(http_certificate="a.pem")


def test_top_finds_the_driver_through_the_folder(start, tokens, tmp_path):
    """live.json leads to the page and its token, is for the owner only, and goes at the end."""
    job = start(**tokens)
    assert (tmp_path / "live.json").stat().st_mode & 0o777 == 0o600
    assert source_of(str(tmp_path), token_file=None, ca=None)() == job.state
    with pytest.raises(JobError, match="401"):
        source_of(job.web.url, token_file=None, ca=None)()
    job._call(job.web.close())
    assert not (tmp_path / "live.json").exists()


def test_top_drains_with_the_token_of_who_may_operate(start, tokens):
    """Through the page's address; a refusal is told in the driver's own words."""
    job = start(**tokens)
    files = {"read": tokens["http_token_file"], "operate": tokens["http_operate_token_file"]}
    drain = partial(drained, job.web.url, ca=None)
    assert drain("beta", token_file=files["operate"]) == "beta leaves"
    with pytest.raises(JobError, match="401: give the right --token-file"):
        drain("beta", token_file=files["read"])
    with pytest.raises(JobError, match="409: no such node"):
        drain("nobody", token_file=files["operate"])


def test_an_answer_of_no_driver_is_one_line(monkeypatch):
    """Whatever another program at that port says."""
    for answer in (b"", b"<html>", b"[" * 5000, b'{"x":' * 5000):
        page = io.BytesIO(answer)
        opened = lambda *_, page=page, **__: page  # noqa: E731 - in place of a connection
        monkeypatch.setattr(urllib.request.OpenerDirector, "open", opened)
        with pytest.raises(JobError, match="no driver answers there"):
            source_of("http://127.0.0.1:1", token_file=None, ca=None)()


NO_PAGES = {
    "http://[::": "must be http",
    "http://": "must be http",
    "ftp://there": "must be http",
    "file:///etc/hostname": "must be http",
    "http://127.0.0.1:x": "no driver answers there",
    f"http://{'a' * 70}.b": "no driver answers there",
}


@pytest.mark.parametrize("url", NO_PAGES)
def test_what_is_no_address_of_a_page_is_one_line(url, tmp_path):
    """Of a user, and of what stands in a run's folder."""
    with pytest.raises(JobError, match=NO_PAGES[url]):
        source_of(url, token_file=None, ca=None)()
    (tmp_path / "live.json").write_text(json.dumps({"url": url}))
    with pytest.raises(JobError, match=NO_PAGES[url]):
        source_of(str(tmp_path), token_file=None, ca=None)


def test_a_recorded_run_is_shown_as_it_ended(tmp_path):
    """From its timings, unmeasured values and a torn last line included; nonsense is one line."""
    joined = {"type": "WorkersJoined", "rendezvous_id": 1, "workers": [["alpha", 0]]}
    joined |= {"applied_steps": 0, "global_batch_size": 8, "capacities": [-1], "prefetch_steps": 0}
    row = {"num_steps": 4, "local_batch_size": 8, "memory_bytes": None, "data_wait_seconds": 0.5}
    row |= {f"{name}_seconds": 0.1 for name in ("transfer", "forward", "backward", "comm_wait")}
    row |= {"optimizer_seconds": 0.1, "step_seconds": 1.0}
    timed = {"type": "StepsTimed", "rendezvous_id": 1, "step": 7, "epoch": 0, "loss": None}
    timed |= {"timings": [row], "exchange_seconds": 0.0}
    records = tmp_path / "timings.jsonl"
    first = timed | {"step": 3}  # which contains the start
    lines = "".join(json.dumps(event) + "\n" for event in (joined, first, timed))
    records.write_text(lines + '{"ty')
    state = source_of(str(tmp_path), token_file=None, ca=None)()
    assert (state.state, state.step) == ("no end recorded", 7)
    assert (state.loss, state.samples_per_second) == (None, 8)
    assert state.workers[0].phases["data_wait"] == 0.5
    assert state.workers[0].memory_bytes is None
    for line in ("[]", '{"x":' * 5000, "[null," * 5000):
        records.write_text(f"{line}\n")
        with pytest.raises(JobError, match=r"timings\.jsonl:1: is no event"):
            source_of(str(tmp_path), token_file=None, ca=None)()


def test_a_token_file_that_is_spoilt_is_told_once_wherever_the_run_is_followed(tmp_path, tokens):
    """On the terminal, and as an event: on the page, in the record and in the logs."""
    said, bus = [], EventBus()
    team = SimpleNamespace(
        bus=bus, tracker=SimpleNamespace(diagnosis=SimpleNamespace(findings=tuple))
    )
    folder = SimpleNamespace(path=tmp_path, run_id="r")
    service = HttpService(
        JobConfig(**tokens),
        folder,
        team,
        None,
        dict,
        say=lambda line, kind: said.append((line, kind)),
    )
    events = LiveView(tuple)
    bus.subscribe(events.observe, "")
    file = Path(tokens["http_operate_token_file"])
    for spoil in (lambda: file.chmod(0o644), lambda: file.chmod(0o600)):
        spoil()
        for _ in range(2):
            service.look()
    spoilt, mended = (line for line, kind in said if kind == "warning")
    assert "has mode 0644, must be 0600" in spoilt
    assert mended.endswith("is read again")
    assert [words for _, words in events.state().events] == [spoilt, mended]
