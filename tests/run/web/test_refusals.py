"""Whatever is refused over HTTP, by the server of a run or by a hub, is refused in one form."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from hetero_hvd.core.recording.foreign import IngestLimits
from hetero_hvd.core.view.live import LiveState
from hetero_hvd.hub.http import api as hub_api
from hetero_hvd.run.web import app, event_streams, server
from hetero_hvd.run.web.access import Access
from hetero_hvd.run.web.app import Answers, Sources
from hetero_hvd.run.web.server import HttpEnd, HttpServer
from hetero_hvd.security.connection_limiter import ConnectionLimiter
from tests.hub.test_api import api, sent
from tests.hub.tokens import TOKENS, token_files


def defect(*_):
    """What nobody has thought of."""
    raise RuntimeError("a defect")


@asynccontextmanager
async def run(folder):
    """The server of a run, whose status has a defect; its URL."""
    sources = Sources(
        state=lambda: LiveState(run_id="demo", state="training"), num_events=lambda: 1,
        status=defect, targets=list, drain=defect, stop=lambda: "stopped",
    )  # fmt: skip
    door = ConnectionLimiter("http", 8)
    web = HttpServer(HttpEnd(address="127.0.0.1", port=0), door)
    tokens = token_files(folder, "read", "operate")
    await web.listen(Answers(Access(address="127.0.0.1", **tokens), sources, door).app())
    try:
        yield web.url
    finally:
        await web.close()


@asynccontextmanager
async def hub(folder):
    """A hub, whose status has a defect and which takes few samples; its URL."""
    limits = IngestLimits(samples_per_second=1.0, burst_seconds=1.0)
    async with api(folder, limits) as client:
        client.commands._actions["status"] = defect
        yield client.url


SERVICES = {
    "hub": (hub, {
        "page": "/v1/status", "order": "/v1/sessions", "events": "/v1/events",
        "body": {"name": "x"}, "wrong": {"name": 1},
    }),
    "run": (run, {
        "page": "/status", "order": "/stop", "events": "/events", "body": {}, "wrong": [],
    }),
}  # fmt: skip
OPERATE = f"Authorization: Bearer {TOKENS['operate'].decode()}"
CORS = ("Access-Control-Request-Method: POST", "Origin: https://evil.lab")

REFUSED = {
    # What is asked; the status; what the line names, allows and says is to be done.
    "no such path": ("GET /v1/nosuch", (), None, 404, ("'/v1/nosuch'", "GET /v1/openapi.json")),
    "a slash too many": ("GET {page}/", (OPERATE,), None, 404, ("{page}/", "openapi.json")),
    "another method": ("DELETE {page}", (OPERATE,), None, 405, ("DELETE '{page}'", "GET or HEAD")),
    "no token": ("GET {page}", (), None, 401, ("'read'", "send Authorization: Bearer TOKEN")),
    "a wrong token": ("POST {order}", ("Authorization: Bearer " + "x" * 20,), "body", 401,
                      ("is not that of the role 'operate'", "or send Authorization: Bearer TOKEN")),
    "a page elsewhere": ("POST {order}", (OPERATE, "Origin: https://evil.lab"), "body", 403,
                         ("'https://evil.lab'", "--http-cors")),
    "another host": ("GET {page}", (OPERATE, "Host: evil.lab"), None, 421,
                     ("'evil.lab'", "localhost")),
    "another form": ("POST {order}", (OPERATE,), "wrong", 400, ("openapi.json", "Expected")),
    "no JSON": ("POST {order}", (OPERATE,), b"{", 400, ("openapi.json", "truncated")),
    "no text": ("POST {order}", (OPERATE,), b'{"name": "\xff"}', 400, ("openapi.json",)),
    "a parameter that is none": ("GET {page}?x=5", (OPERATE,), None, 400, ("'x'", "there are")),
    "another media type": ("POST {order}", (OPERATE, "Content-Type: text/xml"), "body", 415,
                           ("'text/xml'", "application/json")),
    "a compressed body": ("POST {order}", (OPERATE, "Content-Encoding: gzip"), "body", 415,
                          ("'gzip'", "send it as it is")),
    "too large": ("POST {order}", (OPERATE,), b" " * (2**20 + 1), 413, ("at most", "send less")),
    "too slow": ("POST {order}", (OPERATE, "Content-Length: 9"), b"{", 408, ("complete within",)),
    "a viewer too many": ("GET {events}", (OPERATE,), None, 503, ("connected already",)),
    "a defect": ("GET {page}", (OPERATE,), None, 500, ("'{page}'", "its log tells")),
    "no HTTP": (b"\x16\x03\x01\x00\x05hello", (), None, 400, ("must be HTTP/1.1",)),
    "a head without end": (b"GET / HTTP/1.1\r\nX: " + b"a" * server.MAX_HEADER_BYTES, (), None,
                           400, ("at most 16 KiB",)),
}  # fmt: skip
OF_THE_HUB = {
    "an origin that is not listed": (
        "OPTIONS {order}",
        CORS,
        None,
        400,
        ("'https://evil.lab'", "listed by --http-cors: https://grafana.lab"),
    ),
    "too many samples": (
        "POST /v1/ingest",
        (OPERATE,),
        sent(1, 2),
        429,
        ("wait 1 s, and send less",),
    ),
    "no such run": ("GET /v1/runs/x", (OPERATE,), None, 404, ("run 'x'", "GET /v1/runs")),
    "no such node": (
        "GET /v1/series?node=x&figure=use_ratio&from=0&to=1",
        (OPERATE,),
        None,
        404,
        ("node 'x'", "/v1/clients"),
    ),
    "a conflict": ("POST /v1/sessions/x/stop", (OPERATE,), None, 409, ("session 'x'", "there are")),
}
OF_A_RUN = {
    "no exporter": ("GET /metrics", (OPERATE,), None, 404, ("no exporter",)),
    "no traces": ("POST /trace", (OPERATE,), {}, 404, ("no traces",)),
}


def request(service, what, headers, body):
    """Its bytes."""
    if isinstance(what, bytes):
        return what
    content = body if isinstance(body, bytes) else b""
    if body is not None and not isinstance(body, bytes):
        content = msgspec.json.encode(service[body] if isinstance(body, str) else body)
    named = {line.partition(":")[0] for line in headers}
    more = {"Host": "localhost", "Connection": "close", "Content-Length": len(content)}
    lines = [f"{what.format(**service)} HTTP/1.1", *headers]
    lines += [f"{name}: {value}" for name, value in more.items() if name not in named]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def answered(url, content):
    """Status, headers and body of the answer to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        writer.write(content)
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (h.partition(": ") for h in head[1:])}
        body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 20)
        return int(head[0].split()[1]), headers, body
    finally:
        writer.close()


def check(name, service, expected, found):
    """That a refusal has its form and says what it must."""
    (status, headers, body), (code, words) = found, expected
    assert (name, status, headers["content-type"]) == (name, code, "application/json"), body
    assert headers["x-content-type-options"] == "nosniff", name
    told = msgspec.json.decode(body)
    assert told.keys() == {"error"}, name
    line = told["error"]
    assert "\n" not in line, name
    assert len(line) < 400, name
    for word in words:
        assert word.format(**service) in line, name


@pytest.mark.parametrize("kind", SERVICES)
def test_every_refusal_has_one_form(tmp_path, monkeypatch, kind):
    """JSON with `error`, one line: what is wrong, what is allowed, what to do."""
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 0)
    for module in (app, hub_api):
        monkeypatch.setattr(module, "BODY_SECONDS", 0.3)
    serve, service = SERVICES[kind]
    cases = REFUSED | {"hub": OF_THE_HUB, "run": OF_A_RUN}[kind]

    async def act():
        async with serve(tmp_path) as url:
            found = {
                name: await answered(url, request(service, what, headers, body))
                for name, (what, headers, body, _, _) in cases.items()
            }
            monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
            found["full"] = await answered(url, request(service, "GET {page}", (OPERATE,), None))
            return found

    found = asyncio.run(act())
    for name, (_, _, _, code, words) in cases.items():
        check(name, service, (code, words), found[name])
    check("full", service, (503, ("ask again in a few seconds",)), found["full"])
    assert {*found["another method"][1]["allow"].split(", ")} >= {"GET", "HEAD"}
    assert found["no token"][1]["www-authenticate"] == "Bearer"
