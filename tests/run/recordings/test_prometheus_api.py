"""Whatever a server answers that should be a Prometheus, it ends in one line."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.watch import advise
from hetero_hvd.errors import UserError
from hetero_hvd.run.recordings import prometheus_api
from hetero_hvd.run.recordings.prometheus_api import MAX_POINTS, PrometheusApi
from hetero_hvd.run.recordings.prometheus_samples import MAX_SERIES, read_prometheus
from hetero_hvd.security.certificates import Authority
from tests.module_clock import give_clock

TOKEN = "0123456789abcdef"  # noqa: S105 - of a test
NOW = 1_800_000_000.0


def told(result, **more):
    """An answer of Prometheus."""
    data = {"resultType": "matrix", "result": result}
    return json.dumps({"status": "success", "data": data} | more).encode()


NOTHING = told([])


@contextmanager
def served(answer, context=None):
    """A server whose `answer(path, query)` is status, headers and body; with TLS by a context."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            asked.append((parts.path, query, dict(self.headers)))
            status, headers, body = answer(parts.path, query)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            scheme = "http" if context is None else "https"
            yield f"{scheme}://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _quick(tmp_path, monkeypatch):
    """Nobody waits between two tries."""
    monkeypatch.setattr(prometheus_api, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_TOKEN", raising=False)


def status(code, body=b"", **headers):
    """Always that."""
    return lambda *_: (code, headers, body)


def refused(code, words):
    """As Prometheus refuses."""
    return status(code, json.dumps({"status": "error", "error": words}).encode())


DEEP = b"[" * 100_000 + b"]" * 100_000

ANSWERS = {
    "401": (status(401), 2, "has answered with status 401: it wants another token"),
    "403": (status(403), 2, "has answered with status 403: it wants another token"),
    "400": (refused(400, "bad\nquery"), 2, r"has answered with status 400: bad\nquery"),
    "404": (status(404, b"<html>"), 2, "has answered with status 404, and is no Prometheus there"),
    "422": (refused(422, "too many samples"), 2, "with status 422: too many samples"),
    "302": (status(302, Location="http://else/\x1b"), 2, "it sends to http://else/"),
    "429": (status(429), 75, "has answered with status 429, 3 times"),
    "500": (status(500, b"?"), 75, "has answered with status 500, 3 times"),
    "503": (status(503), 75, "has answered with status 503, 3 times"),
    "nothing": (status(200), 2, "its answer is none of Prometheus' (0 bytes"),
    "HTML": (status(200, b"<html>\x1b[2J"), 2, r"that begin with '<html>\\x1b[2J')"),
    "JSON of others": (status(200, b"{}"), 2, "its answer is none of Prometheus'"),
    "a list": (status(200, b"[1]"), 2, "its answer is none of Prometheus'"),
    "no text": (status(200, b"\xff\xfe"), 2, "its answer is none of Prometheus'"),
    "JSON without end": (
        status(200, b'{"status":"success","data":' + b"[" * 10**5), 2, "none of Prometheus'"),
    "a refusal that ends too soon": (
        status(400, b"9\r\n{", **{"Transfer-Encoding": "chunked"}), 2, "is no Prometheus there"),
    "truncated JSON": (status(200, NOTHING[:-4]), 2, "its answer is none of Prometheus'"),
    "an answer that ends too soon": (
        status(200, NOTHING, **{"Content-Length": "999"}), 75, "too soon, 3 times"),
    "an error that is a success": (
        status(200, b'{"status": "error", "error": "no"}'), 2, "has refused a query: no"),
    "values that are none": (
        status(200, told([{"metric": {}, "values": [[NOW, "much"]]}])), 2, "could not convert"),
    "values of another form": (
        status(200, told([{"metric": {}, "values": [["much"]]}])), 2, "none of Prometheus'"),
    "labels that are none": (
        status(200, told([{"metric": [], "values": []}])), 2, "its answer is none of Prometheus'"),
    "JSON without an end of its depth": (
        status(200, b'{"status": "success", "data": ' + DEEP + b"}"), 2, "none of Prometheus'"),
    "an error without an end of its depth": (
        status(400, b'{"status": "error", "data": ' + DEEP + b"}"), 2, "and is no Pro"),
    "an error that ends too soon": (
        status(400, b'ffff\r\n{"', **{"Transfer-Encoding": "chunked"}), 2, "and is no Pro"),
    "no series": (status(200, NOTHING), 2, "it has no series of dcgm-exporter, the node exporter"),
    "a number of series that is none": (
        status(200, told([{"metric": {}, "value": [NOW, "NaN"]}])), 2, "it has no series of"),
    "too many series": (
        status(200, told([{"metric": {}, "value": [NOW, str(MAX_SERIES + 1)]}])), 2,
        f"has {MAX_SERIES + 1} series, more than {MAX_SERIES}: name a part of them with --match"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_one_line(name, capsys):
    """With exit code 2, or 75 where another try later may help; that was tried three times."""
    answer, code, words = ANSWERS[name]
    with served(answer) as (url, asked):
        assert main(["advise", "--prometheus", url]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert "\x1b" not in line
    assert len(asked) >= (3 if code == 75 else 1)


def test_who_is_not_there_is_told(capsys):
    """After three tries."""
    assert main(["advise", "--prometheus", "http://127.0.0.1:1"]) == 75
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not answer (connection refused: nobody listens there), 3 times" in line


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://h/a b",
        "http://h/\u00fc",
        "http://h\n/x",
        "http://a..b",
        "ftp://h",
        "",
    ],
)
def test_what_is_no_address_is_refused(url, capsys):
    """Before anything is asked."""
    assert main(["advise", "--prometheus", url]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must be an address such as https://HOST:9090" in line


def test_long_ranges_come_in_pages():
    """As Prometheus gives no more than 11,000 points at once; none is lost or comes twice."""

    def answer(_, query):
        begin, end, step = (float(query[name]) for name in ("start", "end", "step"))
        number = round((end - begin) / step) + 1
        assert number <= MAX_POINTS
        values = [[begin + place * step, str(place)] for place in range(number)]
        return 200, {}, told([{"metric": {"a": "b"}, "values": values}])

    number = 2 * MAX_POINTS + 5
    with served(answer) as (url, asked):
        found = list(PrometheusApi(url).over("up", NOW, NOW + 15 * (number - 1), 15.0))
    assert len(asked) == 3
    times = [at for series in found for at, _ in series.values]
    assert times == [NOW + 15 * place for place in range(number)]


def test_a_token_is_shown_to_the_server_alone(tmp_path, monkeypatch, capsys):
    """From a file or the environment; the file counts, and must be closed to others."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PROMETHEUS_TOKEN", "of the environment")
    with served(status(401)) as (url, asked):
        main(["advise", "--prometheus", url])
        main(["advise", "--prometheus", url, "--prometheus-token-file", str(file)])
        file.chmod(0o644)
        assert main(["advise", "--prometheus", url, "--prometheus-token-file", str(file)]) == 2
        monkeypatch.setenv("PROMETHEUS_TOKEN", "two\nlines")
        assert main(["advise", "--prometheus", url]) == 2
    assert [headers["Authorization"] for *_, headers in asked] == [
        "Bearer of the environment",
        f"Bearer {TOKEN}",
    ]
    said = capsys.readouterr().err
    assert TOKEN not in said
    assert "has mode 0644" in said


def test_a_token_for_this_machine_goes_through_no_proxy(monkeypatch):
    """Which would see it in plain text."""
    monkeypatch.delenv("no_proxy", raising=False)
    with (
        served(status(200, NOTHING)) as (proxy, seen),
        served(status(200, NOTHING)) as (url, asked),
    ):
        monkeypatch.setenv("http_proxy", proxy)
        assert PrometheusApi(url, token=TOKEN).instant("up", NOW) == []
    assert asked
    assert not seen


@pytest.mark.parametrize("host", ["prometheus:9090", "127.0.0.1.example:9090", "10.0.0.1"])
def test_a_token_does_not_cross_a_network_in_plain_text(host):
    """It would be anybody's."""
    with pytest.raises(UserError, match="would cross the network in plain text; use https"):
        PrometheusApi(f"http://{host}", token=TOKEN)


def test_a_token_for_this_machine_is_shown_to_no_proxy(monkeypatch):
    """That would be another machine, as for all programs that `http_proxy` is set for."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with served(status(200, NOTHING)) as (proxy, asked_proxy):
        monkeypatch.setenv("http_proxy", proxy)
        with served(status(200, NOTHING)) as (url, asked):
            assert PrometheusApi(url, token=TOKEN).instant("up", NOW) == []
    assert not asked_proxy
    assert asked


@pytest.mark.parametrize("url", ["http://a..b", "http://b/\u00fc", "http://b/c d", "http://b/\n"])
def test_what_cannot_be_asked_is_no_address(url, capsys):
    """A traceback, or three tries, would help nobody."""
    assert main(["advise", "--prometheus", url]) == 2
    assert "must be an address such as https://HOST:9090" in capsys.readouterr().err


def test_an_authority_is_named_by_a_file(tmp_path, capsys):
    """Without it a server that has a certificate of its own is refused, at once and in a line."""
    pem, marker = tmp_path / "server.pem", "-----BEGIN CERTIFICATE-----"
    pem.write_bytes(Authority.of_key(b"x" * 32).issue("127.0.0.1", roles=["server"]))
    (tmp_path / "ca.pem").write_text(marker + pem.read_text().rpartition(marker)[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with served(status(401), context) as (url, asked):
        assert main(["advise", "--prometheus", url]) == 2
        assert not asked
        assert main(["advise", "--prometheus", url, "--prometheus-ca", f"{tmp_path}/ca.pem"]) == 2
        assert asked
    first, second = capsys.readouterr().err.splitlines()
    assert "its certificate is not trusted: " in first
    assert "name its authority with --prometheus-ca" in first
    assert "status 401" in second


def exporters(figures, every=15.0, number=240):
    """A server with some series: name of the metric to labels and a value at each place."""

    def answer(path, query):
        text = query["query"]
        found = []
        for metric, labels, value in figures:
            if metric not in text:
                continue
            order = 1 if "scrambled" in labels else -1
            times = [NOW - every * place for place in range(number)][::order]
            values = [[at, str(value(place))] for place, at in enumerate(times)]
            if text.startswith("count("):
                found.append({"metric": {}, "value": [NOW, "1"]})
            elif path.endswith("query_range"):
                step, begin = float(query["step"]), float(query["start"])
                kept = [each for each in values if each[0] >= begin - step]
                found.append({"metric": labels, "values": kept})
            else:
                found.append({"metric": {"__name__": metric, **labels}, "values": values})
        return 200, {}, told(found, warnings=["look here"])

    return answer


GPU = {"gpu": "3", "Hostname": "b", "UUID": "GPU-b"}
DEVICE_FIGURES = {
    "whole": ([("DCGM_FI_DEV_GPU_UTIL", GPU, lambda _: 42)], {"use_ratio": 0.42}, ""),
    "in bytes, which is no MiB": (
        [("DCGM_FI_DEV_FB_USED", GPU, lambda _: 2**36)], {},
        "memory_used_bytes of b GPU 3: 240 values are out of its range"),
    "not known to DCGM": (
        [("DCGM_FI_DEV_GPU_UTIL", GPU, lambda _: 2147483632)], {}, "use_ratio of b GPU 3: 240"),
    "NaN": ([("DCGM_FI_DEV_GPU_UTIL", GPU, lambda _: "NaN")], {}, ""),
    "infinite": ([("DCGM_FI_DEV_GPU_UTIL", GPU, lambda _: "+Inf")], {}, "out of its range"),
    "negative": ([("DCGM_FI_DEV_POWER_USAGE", GPU, lambda _: -5)], {}, "out of its range"),
    "used and free": (
        [("DCGM_FI_DEV_FB_USED", GPU, lambda _: 1024),
         ("DCGM_FI_DEV_FB_FREE", GPU, lambda _: 3072)],
        {"memory_used_bytes": 2.0**30, "memory_total_bytes": 2.0**32}, ""),
    "no host, but an instance": (
        [("DCGM_FI_DEV_GPU_UTIL", {"gpu": "3", "instance": "b:9400"}, lambda _: 7)],
        {"use_ratio": 0.07}, ""),
    "no GPU": (
        [("DCGM_FI_DEV_GPU_UTIL", {"Hostname": "b"}, lambda _: 7)], {},
        "use_ratio: a series does not tell its node or GPU"),
    "a number of a GPU that is none": (
        [("DCGM_FI_DEV_GPU_UTIL", GPU | {"gpu": "9" * 5000}, lambda _: 7)], {},
        "use_ratio: a series does not tell its node or GPU"),
    "a part of a GPU": (
        [("DCGM_FI_DEV_FB_USED", GPU | {"GPU_I_ID": "1"}, lambda _: 7)], {},
        "b: parts of its GPUs (MIG) are left out"),
    "in no order": (
        [("DCGM_FI_DEV_GPU_UTIL", GPU | {"scrambled": "yes"}, lambda _: 42)],
        {"use_ratio": 0.42}, ""),
    "told by two exporters": (
        [("DCGM_FI_DEV_GPU_UTIL", GPU | {"job": "1"}, lambda _: 10),
         ("DCGM_FI_DEV_GPU_UTIL", GPU | {"job": "2"}, lambda _: 90)], {"use_ratio": 0.1}, ""),
    "ours": (
        [("hetero_hvd_gpu_use_ratio", {"node": "b", "device": "3", "uuid": "GPU-b"},
          lambda _: 0.25)], {"use_ratio": 0.25}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", DEVICE_FIGURES)
def test_what_exporters_tell_becomes_a_sample(name):
    """In its units; what is out of range or not told is left out, and the former is said."""
    figures, expected, not_told = DEVICE_FIGURES[name]
    with served(exporters(figures)) as (url, _):
        found = read_prometheus(PrometheusApi(url), NOW + 3, 3600.0)
    assert found.every_seconds == 15.0
    devices = [gpu for _, _, sample in found.samples for gpu in sample.devices]
    for field, value in expected.items():
        assert len(devices) == 240
        assert {round(getattr(gpu, field), 9) for gpu in devices} == {value}
    assert expected or not devices
    assert {gpu.index for gpu in devices} <= {3}
    assert "look here" in found.not_told
    assert not_told in " ".join(found.not_told)


def test_a_node_exporters_series_are_of_the_node_that_it_names():
    """So that its machine and its GPUs, by another exporter, are one node."""
    host = {"instance": "10.0.0.1:9100"}
    figures = [
        ("node_load1", host, lambda _: 1.5),
        ("node_uname_info", host | {"nodename": "b"}, lambda _: 1),
        ("DCGM_FI_DEV_GPU_UTIL", GPU, lambda _: 42),
    ]
    with served(exporters(figures)) as (url, _):
        found = read_prometheus(PrometheusApi(url), NOW + 3, 3600.0)
    assert {node for node, *_ in found.samples} == {"b"}
    assert all(sample.load == 1.5 and sample.devices for _, _, sample in found.samples)


def test_waits_of_a_queue_are_forecast(capsys, monkeypatch):
    """Those of each pool, where our hub is scraped; waits that only vary are not."""
    give_clock(monkeypatch, advise, time=lambda: NOW + 3)
    pools = [("hetero_hvd_queue_longest_wait_seconds", {"pool": pool}, wait)
             for pool, wait in (("grows", lambda at: 15 * at), ("stays", lambda _: 60))
    ]  # fmt: skip
    figures = [("node_load1", {"instance": "b"}, lambda _: 1), *pools]
    with served(exporters(figures)) as (url, _):
        assert main(["advise", "--prometheus", url]) == 0
    said = capsys.readouterr().out
    assert "queue pool grows: the job that waits longest has waited for 60 min; 67" in said
    assert "queue pool stays: " in said
    assert "has waited for 1 min; no forecast: not better than naive" in said
