"""Why nothing has come over HTTP is told in words that people know."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
import urllib.error

import pytest

from hetero_hvd.security.http_requests import untrusted, why_no_answer


def of_system(number):
    """The error of a call that gives this."""
    return OSError(number, os.strerror(number))


def not_trusted():
    """As a handshake gives it."""
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify")
    error.verify_message = "self-signed certificate"
    return error


ENDINGS = {
    "nobody listens": (of_system(errno.ECONNREFUSED), "connection refused: nobody listens there"),
    "closed": (of_system(errno.ECONNRESET), "the connection was closed"),
    "closed while it was written to": (of_system(errno.EPIPE), "the connection was closed"),
    "closed without an answer": (http.client.RemoteDisconnected("x"), "the connection was closed"),
    "too late": (TimeoutError("timed out"), "timed out"),
    "too late, says the system": (of_system(errno.ETIMEDOUT), "timed out"),
    "no route": (of_system(errno.EHOSTUNREACH), "no way leads there"),
    "no network": (of_system(errno.ENETUNREACH), "no way leads there"),
    "no such name": (socket.gaierror(-2, "x"), "no host of that name is known here"),
    "of another protocol": (http.client.BadStatusLine("SSH-2.0"), "what came is no HTTP"),
    "no address": (http.client.InvalidURL("nonnumeric port: 'x'"), "that is no address"),
    "an authority that is not known": (
        not_trusted(),
        "its certificate is not trusted: self-signed certificate",
    ),
    "no TLS": (
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"),
        "it does not speak TLS as is expected here: no handshake",
    ),
    "anything else of the system": (of_system(errno.EMFILE), "Too many open files"),
    "anything else": (OSError(), "OSError"),
}


@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_each_end_of_a_connection_has_its_words(kind, is_wrapped):
    """The same whether urllib has wrapped it or not."""
    error, words = ENDINGS[kind]
    raised = urllib.error.URLError(error) if is_wrapped else error
    assert why_no_answer(raised) == words
    assert bool(untrusted(raised)) is ("authority" in kind)
