"""What an authority signs: for whom, for how long, and who else can sign for it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from hetero_hvd.cli import main
from hetero_hvd.errors import UserError
from hetero_hvd.security.certificates import UNDATED, Authority
from hetero_hvd.security.tls import client_context, peer_names, server_context

KEY = bytes(range(32))


def meet(server_bundle, client_bundle, name="driver"):
    """A handshake in memory; whom each end's certificate is for, as the other sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_context(client_bundle).wrap_bio(to_client, to_server, server_hostname=name),
        server_context(server_bundle).wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in (*ends, *ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    client, server = ends
    assert client.version() == "TLSv1.3"
    return peer_names(server), peer_names(client)


@pytest.mark.parametrize("make", [Authority.new, lambda: Authority.of_key(KEY)], ids=["new", "key"])
def test_each_end_sees_whom_the_other_certificate_is_for(make):
    """Names longer than a common name may be are kept whole."""
    long = f"{'a' * 64}-10.r123"
    authority = make()
    server = authority.issue("driver", roles=["server"])
    assert meet(server, authority.issue(long, roles=["client"])) == ({long}, {"driver"})


def test_who_holds_the_key_makes_the_same_authority_anew():
    """And who holds another one does not, though both go by one name."""
    server = Authority.of_key(KEY).issue("agent", roles=["server"])
    meet(server, Authority.of_key(KEY).issue("driver", roles=["client"]), "agent")
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(server, Authority.of_key(bytes(32)).issue("driver", roles=["client"]), "agent")


REFUSED = {
    "as a client the server's": ("server", "server", "driver"),
    "as a server the client's": ("client", "client", "driver"),
    "for another name": ("server", "client", "alpha"),
}


@pytest.mark.parametrize(("server", "client", "name"), REFUSED.values(), ids=REFUSED)
def test_a_certificate_is_good_for_its_own_role_and_name_only(server, client, name):
    """The authority is the right one in each case."""
    authority = Authority.new()
    ends = [authority.issue("driver", roles=[role]) for role in (server, client)]
    with pytest.raises(ssl.SSLError):
        meet(*ends, name)


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "in a file"])
def test_a_clock_has_a_say_in_files_only(kept, tmp_path):
    """What leaves no process is good at all times, on machines without a battery, too."""
    authority = Authority.of_folder(tmp_path) if kept else Authority.new()
    for found in x509.load_pem_x509_certificates(authority.issue("alpha")):
        dates = found.not_valid_before_utc, found.not_valid_after_utc
        assert (dates == UNDATED) is not kept
        assert dates[0] < datetime.now(UTC) < dates[1]


def pem(key, password=None):
    """A private key in a file."""
    protection = NoEncryption() if password is None else BestAvailableEncryption(password)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)


EC_KEY = ec.generate_private_key(ec.SECP256R1())
CERTIFICATE = Authority.new().as_pem().partition(b"-----END PRIVATE KEY-----")[2]
KEPT = {
    "an encrypted key": (pem(EC_KEY, b"secret") + CERTIFICATE, "encrypted; store it without"),
    "an empty file": (b"", "is not what hetero-hvd key certificates has made"),
    "no PEM": (bytes(range(256)), "is not what"),
    "a certificate alone": (CERTIFICATE, "is not what"),
    "a key alone": (pem(EC_KEY), "is not what"),
    "a key of another kind": (pem(ed25519.Ed25519PrivateKey.generate()) + CERTIFICATE, "is not"),
    "a broken key": (pem(EC_KEY).replace(b"M", b"N") + CERTIFICATE, "is not what"),
}


@pytest.mark.parametrize("case", KEPT)
def test_an_authority_that_cannot_be_used_is_one_line(case, tmp_path, capsys):
    """Whatever its file holds."""
    content, words = KEPT[case]
    (tmp_path / "authority.pem").write_bytes(content)
    assert main(["certificates", str(tmp_path), "alpha"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert str(tmp_path / "authority.pem") in line


def test_a_tls_file_with_an_encrypted_key_is_refused_and_nobody_is_asked():
    """OpenSSL would wait at the terminal for a password."""
    bundle = Authority.new().issue("alpha")
    key = load_pem_private_key(bundle, None)
    rest = bundle.partition(b"-----END PRIVATE KEY-----")[2]
    with pytest.raises(UserError, match="the private key is encrypted"):
        server_context(pem(key, b"secret") + rest)
