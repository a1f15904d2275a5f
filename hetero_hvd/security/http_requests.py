"""HTTP requests that go where they were sent; why one has got no answer, in our words."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
import urllib.error
import urllib.request

CLOSED = "the connection was closed"
_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "no host of that name is known here"),
    (TimeoutError, "timed out"),
    (ConnectionRefusedError, "connection refused: nobody listens there"),
    (ConnectionError, CLOSED),
    (http.client.InvalidURL, "that is no address"),
    (http.client.RemoteDisconnected, CLOSED),
    (http.client.HTTPException, "what came is no HTTP"),
)
_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """For urllib: an answer that sends elsewhere is an error."""

    def redirect_request(self, *_: object) -> None:
        """Called by urllib; None: the answer is an error."""


def untrusted(error: BaseException) -> str:
    """Why its certificate is not trusted; empty: that is not what is wrong."""
    found = _cause(error)
    if not isinstance(found, ssl.SSLCertVerificationError):
        return ""
    return found.verify_message or "it is of another authority"


def why_no_answer(error: BaseException) -> str:
    """What an error of `urllib` means that is no answer with a status.

    Args:
        error: `URLError`, another `OSError`, or an `HTTPException`.
    """
    if words := untrusted(error):
        return f"its certificate is not trusted: {words}"
    found = _cause(error)
    if isinstance(found, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return CLOSED
    if isinstance(found, ssl.SSLError):
        why = (getattr(found, "reason", None) or "no handshake").replace("_", " ").lower()
        return f"it does not speak TLS as is expected here: {why}"
    if isinstance(found, OSError) and found.errno in _UNREACHABLE:
        return "no way leads there"
    told = next((words for kind, words in _WORDS if isinstance(found, kind)), "")
    return told or getattr(found, "strerror", None) or type(found).__name__


def _cause(error: BaseException) -> BaseException:
    """What `urllib` has wrapped."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return reason if isinstance(reason, BaseException) else error
