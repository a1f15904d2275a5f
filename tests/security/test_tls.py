"""TLS on our ports: each end sees the other's certificate, or there is no connection."""

from __future__ import annotations

import asyncio
import ssl
import sys

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from hetero_hvd.agent.server import AgentServer
from hetero_hvd.cli import main
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.driver.workers.credentials import DRIVER_NAME, Credentials
from hetero_hvd.errors import UserError
from hetero_hvd.messages import Heartbeat
from hetero_hvd.security.certificates import Authority
from hetero_hvd.security.cluster_key import make_key, read_key
from hetero_hvd.security.tls import client_context, read_bundle, server_context
from tests.driver.network.test_channel_server import Desk, shake_hands


@pytest.fixture(scope="module")
def credentials():
    """Those of one job."""
    return Credentials.new(tls=True)


def worker_bundle(credentials):
    """What the job's workers are given."""
    return credentials.environment["HETERO_HVD_TLS"].encode()


async def knock(port, context, name=DRIVER_NAME):
    """Connect to the channel's port; the first frame."""
    options = {"ssl": context, "server_hostname": name} if context else {}
    url = f"{'wss' if context else 'ws'}://127.0.0.1:{port}/channel"
    async with connect(url, proxy=None, open_timeout=5, **options) as socket:
        return await socket.recv()


def serve(credentials, scenario):
    """Run a scenario against a channel server with TLS; its count of refusals."""

    async def run():
        server = ChannelServer(credentials.key, desk := Desk(), credentials.tls)
        port = await server.listen("127.0.0.1")
        try:
            await asyncio.wait_for(scenario(port, desk), 20)
        finally:
            await server.close()
        return server.refused

    return asyncio.run(run())


def test_a_worker_of_the_job_talks_through_tls(credentials):
    """TLS 1.3 with both certificates, and inside it the same proof of the job's key."""

    async def scenario(port, desk):
        context = client_context(worker_bundle(credentials))
        url = f"wss://127.0.0.1:{port}/channel"
        async with connect(url, ssl=context, server_hostname=DRIVER_NAME, proxy=None) as socket:
            assert socket.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
            session = await shake_hands(socket, key=credentials.key)
            await socket.send(session.seal(Heartbeat(applied_steps=1)))
            await desk.news.wait()
        assert desk.heard == [("alpha-0", Heartbeat(applied_steps=1))]

    assert serve(credentials, scenario) == 0


def bare():
    """A client that shows no certificate and asks for none."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


STRANGERS = {
    "without TLS": lambda _: None,
    "without a certificate": lambda _: bare(),
    "of another job": lambda _: client_context(worker_bundle(Credentials.new(tls=True))),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_before_a_word_is_said(credentials, stranger):
    """It is counted, and gets no frame at all."""

    async def scenario(port, desk):
        with pytest.raises((WebSocketException, OSError, EOFError)):
            await knock(port, stranger(credentials))
        assert desk.addresses == []

    assert serve(credentials, scenario) == 1


def test_a_worker_does_not_talk_to_a_false_driver(credentials):
    """Neither to one of another authority nor to another worker of its own job."""
    other_job = Credentials.new(tls=True).tls
    other_worker = server_context(worker_bundle(credentials))
    for context in (other_job, other_worker):
        false = Credentials(key=credentials.key, tls=context, environment={})

        async def scenario(port, _desk):
            with pytest.raises(ssl.SSLCertVerificationError):
                await knock(port, client_context(worker_bundle(credentials)))

        serve(false, scenario)


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "bundle", "code"),
    [("alpha", "driver.pem", 0), ("beta", "driver.pem", 255), ("alpha", None, 255)],
    ids=["genuine", "other-name", "without-tls"],
)
def test_the_driver_reaches_an_agent_through_tls(tmp_path, name, bundle, code, capsys):
    """The agent's certificate must be for the node; without one's own there is no answer."""
    make_key(tmp_path / "key")
    assert main(["certificates", str(tmp_path / "tls"), "alpha,127.0.0.1", "driver"]) == 0
    assert str(tmp_path / "tls" / "alpha.pem") in capsys.readouterr().out

    async def scenario():
        context = server_context(read_bundle(tmp_path / "tls" / "alpha.pem"))
        server = AgentServer(read_key(tmp_path / "key"), tls=context)
        port = await server.listen("127.0.0.1", 0)
        tls = ["--tls", str(tmp_path / "tls" / bundle), name] if bundle else []
        command = ["-m", "hetero_hvd.agent.client", "127.0.0.1", str(port), str(tmp_path / "key")]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, *tls, "--gpus")
        found = await process.wait()
        await server.close()
        return found, server.started, server.refused

    assert asyncio.run(scenario()) == (code, 1 - bool(code), bool(code))


def test_what_is_made_is_secret_and_never_overwritten(tmp_path, capsys):
    """Files of mode 0600; the authority is made once, and used again for later nodes."""
    folder = tmp_path / "tls"
    assert main(["certificates", str(folder), "alpha"]) == 0
    first = (folder / "authority.pem").read_bytes()
    assert main(["certificates", str(folder), "beta"]) == 0
    assert (folder / "authority.pem").read_bytes() == first
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert main(["certificates", str(folder), "alpha"]) == 2
    assert "exists already" in capsys.readouterr().err
    for bad in ("authority", "a/b", "alpha,$(id)"):
        assert main(["certificates", str(folder), bad]) == 2


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nx\n", None])
def test_a_file_that_is_no_tls_file_is_named_so(content):
    """Also one without the authority's certificate."""
    whole = Authority.new().issue("alpha")
    with pytest.raises(UserError, match="a TLS file must hold"):
        client_context(whole[: whole.rindex(b"-----BEGIN")] if content is None else content)


def test_a_tls_file_that_others_can_read_is_refused(tmp_path):
    """It holds a private key."""
    (tmp_path / "a.pem").write_bytes(Authority.new().issue("alpha"))
    (tmp_path / "a.pem").chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_bundle(tmp_path / "a.pem")
    with pytest.raises(UserError, match="cannot be read"):
        read_bundle(tmp_path / "b.pem")
