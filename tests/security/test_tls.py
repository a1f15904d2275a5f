"""TLS on our ports: each end sees the other's certificate, or there is no connection."""

from __future__ import annotations

import asyncio
import ssl
import sys

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from hetero_hvd.agent.server import AgentServer
from hetero_hvd.channel import DRIVER_NAME
from hetero_hvd.cli import main
from hetero_hvd.errors import UserError
from hetero_hvd.security.certificates import Authority
from hetero_hvd.security.cluster_key import make_key, read_key
from hetero_hvd.security.tls import (
    client_context,
    context_for_others,
    read_bundle,
    server_context,
)
from tests.driver.network.test_channel_server import JOB, of_worker, serve


def bare():
    """A client that shows no certificate and asks for none."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def old():
    """A worker of the job that speaks nothing newer than TLS 1.2."""
    context = of_worker()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def self_signed():
    """Who makes an authority of his own and has the names right."""
    context = client_context(Authority.new().issue("alpha-0"))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


STRANGERS = {
    "without TLS": lambda: None,
    "without a certificate": bare,
    "of another authority": self_signed,
    "with the driver's certificate": lambda: client_context(
        JOB._authority.issue("alpha-0", roles=["server"])
    ),
    "with an older TLS": old,
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_before_a_word_is_said(stranger):
    """It is counted, and gets no frame at all."""

    async def scenario(server, desk, port):
        tls = stranger()
        options = {"ssl": tls, "server_hostname": DRIVER_NAME} if tls else {}
        url = f"{'wss' if tls else 'ws'}://127.0.0.1:{port}/channel"
        with pytest.raises((WebSocketException, OSError, EOFError)):
            async with connect(url, proxy=None, open_timeout=5, **options) as socket:
                await socket.recv()
        assert desk.addresses == []
        assert server.refused == 1

    serve(scenario)


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "bundle", "said"),
    [
        ("alpha", "driver.pem", ""),
        ("beta", "driver.pem", "its certificate is not that of node beta: Hostname mismatch"),
        ("alpha", None, "the other end does not hold this cluster's key"),
        ("alpha", "alpha.pem", "the certificate of who asks is not for `driver`"),
    ],
    ids=["genuine", "other-name", "by-the-key", "of-a-node"],
)
def test_the_driver_reaches_an_agent_by_tls_files(tmp_path, name, bundle, said, capfd):
    """The agent's certificate must be for the node, that of who asks for `driver`."""
    make_key(tmp_path / "key")
    assert main(["certificates", str(tmp_path / "tls"), "alpha,127.0.0.1", "driver"]) == 0
    assert str(tmp_path / "tls" / "alpha.pem") in capfd.readouterr().out
    code = 255 if said else 0

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
    assert said in capfd.readouterr().err


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


def test_an_authority_of_others_needs_no_key_identifier():
    """Python 3.13 refuses one without, as many clusters have; whom it has not signed is refused."""
    context = context_for_others(None)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
