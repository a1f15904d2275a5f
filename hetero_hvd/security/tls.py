"""TLS in both directions: each end shows a certificate of one authority, and sees the other's.

One PEM file holds all that an end needs: its private key, its certificate, and the certificate of
the authority that both trust. TLS 1.3 only, so that a key that is stolen later opens no recording.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from pathlib import Path
from typing import Any

from hetero_hvd.errors import UserError
from hetero_hvd.security.secret_files import read_secret

HANDSHAKE_SECONDS = 5.0
MAX_BUNDLE_BYTES = 2**20
ANY_FILE = "a TLS file"
_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----", re.ASCII | re.DOTALL
)


def read_bundle(path: Path) -> bytes:
    """Read such a file.

    Raises:
        UserError: It cannot be read, or others can read it too.
    """
    try:
        mode, content = read_secret(path, MAX_BUNDLE_BYTES)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(
            f"{path}: found mode {mode:04o}, but a private key must be closed to others; "
            f"run: chmod 600 {path}"
        )
    return content


def server_context(bundle: bytes, name: str = ANY_FILE) -> ssl.SSLContext:
    """For the end that listens: clients must show a certificate of the authority.

    Args:
        bundle: What is in the file.
        name: Of the file, for the message.

    Raises:
        UserError: The bundle is not complete.
    """
    context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), bundle, name)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # each connection proves both ends anew
    return context


def client_context(bundle: bytes, name: str = ANY_FILE) -> ssl.SSLContext:
    """For the end that connects: the other's certificate must be for the name it goes by.

    Args:
        bundle: What is in the file.
        name: Of the file, for the message.

    Raises:
        UserError: The bundle is not complete.
    """
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), bundle, name)


def context_for_others(ca_file: str | None) -> ssl.SSLContext:
    """For a server that is not ours, whose authority is in a file; None: the machine's authorities.

    From Python 3.13 on an authority whose certificate names no key identifier is refused, and the
    authorities that clusters and labs make for themselves often name none.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def peer_names(connection: ssl.SSLObject | ssl.SSLSocket) -> frozenset[str]:
    """Whom the other end's certificate is for, as the authority says; without addresses."""
    alternatives = (connection.getpeercert() or {}).get("subjectAltName", ())
    return frozenset(str(entry[1]) for entry in alternatives if entry[0] == "DNS")


def tampering(error: Exception) -> str:
    """What TLS found wrong with what came, if that has ended a connection; else empty."""
    return str(error.__cause__) if isinstance(error.__cause__, ssl.SSLError) else ""


def server_options(context: ssl.SSLContext) -> dict[str, Any]:
    """What asyncio's servers need to be told."""
    return {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_SECONDS}


def _no_password() -> str:
    """Called where a private key is encrypted; else OpenSSL would ask at the terminal, and wait."""
    raise ValueError("the private key is encrypted, store it without a password")


def _loaded(context: ssl.SSLContext, bundle: bytes, name: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    descriptor = os.memfd_create("bundle")  # the ssl module reads keys from files only
    try:
        os.write(descriptor, bundle)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)
        certificates = _CERTIFICATE.findall(bundle.decode("ascii", "replace"))
        context.load_verify_locations(cadata="\n".join(certificates[1:]))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name} must hold, in PEM, a private key, its certificate and that of the authority: "
            f"{error}"
        ) from error
    finally:
        os.close(descriptor)
    return context
