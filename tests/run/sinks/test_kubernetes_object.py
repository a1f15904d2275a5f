"""Annotations of a run's own object: a server with TLS that answers as the API server does."""

import http.server
import json
import queue
import re
import socket
import ssl
import threading
import time

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.watch import annotated
from hetero_hvd.core.advice.advice import NOTHING, Advice, Advised
from hetero_hvd.errors import JobError, TryAgainError, UserError
from hetero_hvd.run.sinks import observer as observers
from hetero_hvd.run.sinks.destinations import kubernetes_object
from hetero_hvd.run.sinks.destinations.kubernetes_object import KubernetesObject
from hetero_hvd.run.sinks.observer import SinkObserver
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.security.certificates import Authority
from tests.run.reports.test_costs import day, record

from .recorded import EVALUATED, EVENTS, STARTED
from .servers import wait_until

ENDED = EVENTS[-1]
URL = "kubernetes:job/train-driver"
PATH = "/apis/batch/v1/namespaces/ours/jobs/train-driver"


class ApiServer(http.server.ThreadingHTTPServer):
    """Keeps the annotations of one object.

    Attributes:
        annotations: Of the object.
        token: That it knows.
        answers: Statuses with headers for the next requests; then those of a healthy server.
        asked: Method, path and content type of each request.
        released: Ends requests that stall.
    """

    daemon_threads = False

    def __init__(self, context):
        super().__init__(("127.0.0.1", 0), Patches)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.annotations = {}
        self.token = "first"  # noqa: S105 - of a test
        self.answers = queue.Queue()
        self.asked = []
        self.released = threading.Event()

    def handle_error(self, *_):
        """Clients that do not trust it, or have gone."""


class Patches(http.server.BaseHTTPRequestHandler):
    """As the API server answers a PATCH."""

    def do_PATCH(self):
        """Merge annotations, unless something else is wanted."""
        server = self.server
        server.asked.append((self.path, self.headers["Content-Type"]))
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, headers = 200, {}
        if self.headers["Authorization"] != f"Bearer {server.token}":
            status = 401
        elif not server.answers.empty():
            status, headers = server.answers.get()
        if status == "stall":
            server.released.wait(20)
            status = 200
        if status == 200:
            server.annotations |= content["metadata"]["annotations"]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The API server, and a pod with a service account."""
    authority = Authority.of_key(b"x" * 32)
    pem = tmp_path / "server.pem"
    pem.write_bytes(authority.issue("127.0.0.1", roles=["server"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    account = tmp_path / "account"
    account.mkdir()
    marker = "-----BEGIN CERTIFICATE-----"
    own = pem.read_text().rpartition(marker)
    (account / "ca.crt").write_text(marker + own[2])
    (account / "namespace").write_text("ours\n")
    (account / "token").write_text("first\n")
    monkeypatch.setattr(kubernetes_object, "ACCOUNT", account)
    monkeypatch.setattr(kubernetes_object, "PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(observers, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # is not asked
    with ApiServer(context) as found:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(found.server_address[1]))
        thread = threading.Thread(target=found.serve_forever, args=(0.02,))
        thread.start()
        yield found
        found.released.set()
        found.shutdown()
        thread.join()


def follow(said, events=EVENTS, at=0.0):
    """Let an observer follow a run to its end."""
    observer = SinkObserver(URL, said.append)
    for number, event in enumerate(events):
        observer.observe(at + number, event)
    observer.close()
    return observer


def test_a_run_is_told_in_annotations(server):
    """State, step, workers and figures; one object, by merge patches."""
    said = []
    observer = follow(said)
    found = {key.removeprefix("hetero-hvd/"): word for key, word in server.annotations.items()}
    assert (said, observer.num_lost) == ([], 0)
    assert set(server.asked) == {(PATH, "application/merge-patch+json")}
    assert found["run"] == STARTED.run_id
    assert found["state"] == ENDED.reason
    assert int(found["step"]) > 0
    assert float(found["evaluation-accuracy"]) == pytest.approx(EVALUATED.metrics["accuracy"])
    assert {"loss", "learning-rate", "updated"} <= found.keys()
    assert all(len(word) <= 1024 for word in found.values())


PASSING = {
    "fails": (500, {}),
    "is not there for a while": (503, {}),
    "was changed by somebody": (409, {}),
    "is busy, without a time": (429, {}),
    "is busy": (429, {"Retry-After": "0"}),
}


@pytest.mark.parametrize("answer", PASSING.values(), ids=PASSING)
def test_what_passes_is_tried_again(server, answer):
    """Told once at most; in the end all is there."""
    for _ in range(2):
        server.answers.put(answer)
    said = []
    follow(said)
    assert server.answers.empty()
    assert server.annotations["hetero-hvd/state"] == ENDED.reason
    assert len([line for line in said if "the training goes on" in line]) <= 1


LASTING = {
    "the token is unknown": (401, "is not known there"),
    "no right": (403, "a Role must let this pod's service account patch it"),
    "no such object": (404, "there is no such object"),
    "not taken": (422, "does not take such annotations"),
}


@pytest.mark.parametrize(("status", "words"), LASTING.values(), ids=LASTING)
def test_what_does_not_pass_is_told_once_and_counted(server, status, words):
    """And nobody is asked for ever; 401 only after the token was read again."""
    for _ in range(100):
        server.answers.put((status, {}))
    said = []
    observer = follow(said)
    first, last = said
    assert words in first
    assert "the training goes on" in first
    assert f"{observer.num_lost} samples were left out" in last
    assert observer.num_lost > 0
    assert len(server.asked) == 1 + (status == 401)
    assert server.annotations == {}


def test_a_token_that_is_rotated_is_read_again(server):
    """As a kubelet does each hour: the old one is refused from then on."""
    sink = KubernetesObject(URL)
    sink.begin(STARTED)
    (kubernetes_object.ACCOUNT / "token").write_text("second\n")
    server.token = "second"  # noqa: S105 - of a test
    sink.end("done")
    assert server.annotations["hetero-hvd/state"] == "done"


def test_a_server_that_stalls_delays_nobody(server, monkeypatch):
    """The run ends in its time, and what was left out is told."""
    monkeypatch.setattr(kubernetes_object, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(observers, "CLOSE_SECONDS", 1.0)
    for _ in range(100):
        server.answers.put(("stall", {}))
    said = []
    observer = SinkObserver(URL, said.append)
    before = time.monotonic()
    for number, event in enumerate(EVENTS):
        observer.observe(float(number), event)
    assert time.monotonic() - before < 5.0  # each of its requests would take as long as a request
    observer.close(1.0)
    assert sum("the training goes on" in line for line in said) == 1
    assert any("has not ended" in line for line in said)
    server.released.set()
    wait_until(lambda: not observer._thread.is_alive())


def test_another_server_of_that_address_gets_no_token(server):
    """Its certificate is not of the cluster's authority."""
    other = Authority.new().issue("127.0.0.1", roles=["server"]).decode()
    marker = "-----BEGIN CERTIFICATE-----"
    (kubernetes_object.ACCOUNT / "ca.crt").write_text(marker + other.rpartition(marker)[2])
    with pytest.raises(OSError, match=r"does not answer \(its certificate is not trusted: "):
        KubernetesObject(URL).begin(STARTED)
    assert server.asked == []


def test_workers_are_counted(server):
    """Those that have taken part in the newest interval."""
    sink = KubernetesObject(URL)
    sink.begin(STARTED)
    names = ("alpha:0", "alpha:1", "beta:0")
    paths = [f"{name}/{what}" for name in names for what in ("local_batch_size", "wait_seconds")]
    sink.write([Sample(1.0, 7, "x", {}, path, 1.0) for path in paths])
    assert server.annotations["hetero-hvd/workers"] == "3"


def test_a_server_that_stays_busy_is_told(server, monkeypatch):
    """The run's end stands nowhere then."""
    monkeypatch.setattr(kubernetes_object, "LAST_WAIT_SECONDS", 0.01)
    sink = KubernetesObject(URL)
    for _ in range(3):
        server.answers.put((429, {}))
    sink.begin(STARTED)
    with pytest.raises(OSError, match="the server is busy, the end is not told"):
        sink.end("done")


def test_it_is_told_now_and_then(server, monkeypatch):
    """Whoever writes each second to etcd is a nuisance."""
    monkeypatch.setattr(kubernetes_object, "PERIOD_SECONDS", 3600.0)
    sink = KubernetesObject(URL)
    sink.begin(STARTED)
    for step in range(1, 50):
        sink.write([Sample(float(step), step, "loss", {}, "run/loss", 1.0 / step)])
    assert len(server.asked) == 1
    sink.end("done")
    assert len(server.asked) == 2
    assert server.annotations["hetero-hvd/step"] == "49"


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(server, monkeypatch):
    """Nothing is sent before; the end is told all the same."""
    server.answers.put((429, {"Retry-After": "3600"}))
    sink = KubernetesObject(URL)
    sink.begin(STARTED)
    for step in (1, 2, 3):
        sink.write([Sample(float(step), step, "loss", {}, "run/loss", 1.0)])
    assert len(server.asked) == 1
    monkeypatch.setattr(kubernetes_object, "LAST_WAIT_SECONDS", 0.01)
    server.answers.put((429, {"Retry-After": "3600"}))
    sink.end("done")
    assert server.annotations["hetero-hvd/step"] == "3"


WRONG = [
    "kubernetes:", "kubernetes:job", "kubernetes:job/", "kubernetes:pod/x", "kubernetes:job/../x",
    "kubernetes:job/A", "kubernetes:job/a/b",
]  # fmt: skip


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_name_is_one_line(monkeypatch, url):
    """Before anything is sent."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with pytest.raises(UserError, match="must be one of kubernetes:job/NAME"):
        KubernetesObject(url)


def test_outside_of_a_pod_it_says_so(monkeypatch):
    """At the start of the job."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match="this is no pod"):
        KubernetesObject(URL)


def advised(*ids):
    """These."""
    told = (Advice(kind="limit", id=each, what=f"do {each}", evidence=("seen",)) for each in ids)
    return Advised(advice=tuple(told))


def looks(*said):
    """What is advised at each look; the run ends with the last one."""
    left = list(said)
    return lambda: (left.pop(0), bool(left))


ONE, OTHER = advised("limit:input:all"), advised("limit:input:all", "memory:a")
ENDS = {
    "well": ([], (ONE,), 1, None, ""),
    "unchanged": ([], (ONE, ONE, ONE), 1, None, ""),
    "changed": ([], (ONE, OTHER), 2, None, ""),
    "nothing to gain any more": ([], (ONE, advised()), 2, None, ""),
    "forbidden": ([403], (ONE, ONE), 1, JobError, "a Role must let this pod's service account"),
    "not there": ([404], (ONE, ONE), 1, JobError, "there is no such object in this namespace"),
    "changed by somebody": ([409], (ONE,), 2, None, ""),
    "changed by somebody, again": ([409, 409], (ONE, ONE), 3, None, ""),
    "changed by somebody for ever": ([409] * 4, (ONE, ONE), 4, TryAgainError, "409"),
    "not taken": ([400, 400], (ONE, ONE), 2, TryAgainError, "the API server does not take it"),
    "fails at the end": ([500], (ONE,), 1, TryAgainError, "the API server has failed"),
    "sends elsewhere": ([302], (ONE,), 1, TryAgainError, "does not take it .status 302"),
    "fails for a while": ([500], (ONE, ONE, ONE), 2, None, ""),
    "busy for a while": ([429], (ONE, ONE), 2, None, ""),
    "busy at the end": ([429], (ONE,), 1, TryAgainError, "the server is busy"),
    "no answer for a while": (["stall"], (ONE, ONE), 2, None, ""),
    "no answer at the end": (["stall"], (ONE,), 1, TryAgainError, "timed out"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_is_advised_is_annotated_when_it_has_changed(server, name, monkeypatch, capsys):
    """Whatever the server answers; what passes is tried again while the run goes on."""
    answers, said, num_asked, error, words = ENDS[name]
    monkeypatch.setattr(annotated, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(kubernetes_object, "TIMEOUT_SECONDS", 0.3)
    for status in answers:
        server.answers.put((status, {}))
    if error is None:
        annotated.annotate(URL, looks(*said))
    else:
        with pytest.raises(error, match=words):
            annotated.annotate(URL, looks(*said))
    server.released.set()
    assert [path for path, _ in server.asked] == [PATH] * num_asked
    assert server.answers.empty(), "the fault did not happen"
    found = {key.removeprefix("hetero-hvd/"): word for key, word in server.annotations.items()}
    if error is None:
        last = said[-1].advice
        assert found["advice-ids"] == ",".join(each.id for each in last)
        assert found["advice"] == ("; ".join(map(str, last)) or NOTHING)
        assert "advice-updated" in found
        assert "updated" not in found, "that is of what a run tells"
        is_late = "while" in name or "again" in name
        assert ("is tried again in" in capsys.readouterr().out) == is_late


UNREACHED = {
    "nobody listens": (TryAgainError, "the API server does not answer (connection refused: nobody"),
    "another authority": (TryAgainError, "(its certificate is not trusted: "),
    "no TLS": (TryAgainError, "(it does not speak TLS as is expected here: "),
    "closed at once": (TryAgainError, "(the connection was closed)"),
    "no token": (
        JobError,
        "this pod has no service account whose token and certificate can be read",
    ),
    "no certificate": (JobError, "this pod has no service account whose token and certificate"),
}


@pytest.mark.parametrize("name", UNREACHED)
def test_why_nothing_was_annotated_is_told_in_our_words(server, name, monkeypatch):
    """Without a number of the system or a name of a class."""
    kind, words = UNREACHED[name]
    account = kubernetes_object.ACCOUNT
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        if name in {"no TLS", "closed at once"}:
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
            thread = threading.Thread(target=_answer_once, args=(other, name == "no TLS"))
            thread.start()
        if name == "nobody listens":
            other.close()
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        elif name == "another authority":
            issued = Authority.new().issue("127.0.0.1", roles=["server"]).decode()
            marker = "-----BEGIN CERTIFICATE-----"
            (account / "ca.crt").write_text(marker + issued.rpartition(marker)[2])
        elif name.startswith("no ") and name != "no TLS":
            (account / {"no token": "token", "no certificate": "ca.crt"}[name]).unlink()
        with pytest.raises(kind) as found:
            annotated.annotate(URL, looks(ONE))
        if name in {"no TLS", "closed at once"}:
            thread.join()
    (line,) = found.value.lines
    assert line.startswith("job/train-driver: ")
    assert words in line
    assert not re.search(r"Errno|urlopen|Error\b|_ssl", line)
    assert server.asked == []


def _answer_once(listener, has_words):
    """As who does not speak TLS, or no longer wants to."""
    end, _ = listener.accept()
    with end:
        end.recv(2**16)
        if has_words:
            end.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_an_object_is_told_at_most_every_30_seconds(server, monkeypatch):
    """However often it is looked, and whatever has changed."""
    monkeypatch.setattr(kubernetes_object, "PERIOD_SECONDS", 30.0)
    told = annotated.AnnotatedAdvice(URL)
    assert told.tell(ONE) == ""
    assert told.tell(ONE) == ""
    assert "was told a moment ago" in told.tell(OTHER)
    assert len(server.asked) == 1


def test_the_command_annotates_what_it_advises(server, tmp_path, monkeypatch, capsys):
    """Of a run that has ended once; a wrong object is one line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = record(tmp_path / "run", day({"alpha": 1.0, "gamma": 1.0}))
    assert main(["advise", str(folder), "--annotate", URL]) == 0
    assert server.annotations["hetero-hvd/advice"]
    assert len(server.asked) == 1
    assert main(["advise", str(folder), "--annotate", "job/x"]) == 2
    assert "must be one of kubernetes:job/NAME" in capsys.readouterr().err
