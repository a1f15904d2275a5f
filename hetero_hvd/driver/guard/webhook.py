"""Tells a URL of an episode, as JSON by POST. The URL may be a secret: no message repeats it."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from base64 import b64encode
from urllib.parse import unquote, urlsplit, urlunsplit

from hetero_hvd.driver.guard.notifier import Notice
from hetero_hvd.errors import JobError, TransientError
from hetero_hvd.security.http_requests import NoRedirects, why_no_answer

TIMEOUT_SECONDS = 10.0
_BUSY = frozenset({408, 425, 429})
"""Answers after which another try may help, as after all from 500 on."""


class NoAnswerError(TransientError):
    """Whoever should take a notice does not."""


class Webhook:
    """One receiver.

    Args:
        url: Of http or https; a name and password in it are sent as HTTP's basic authentication.
        timeout_seconds: To connect, and between two pieces of the answer.

    Attributes:
        shown: Where it is, without what may be secret.
    """

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit(parts._replace(netloc=place, fragment=""))
        self._headers = {"Content-Type": "application/json", "User-Agent": "hetero_hvd"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        self.shown = f"webhook at {parts.hostname}"
        self._timeout_seconds = timeout_seconds
        self._opener = urllib.request.build_opener(NoRedirects)

    def deliver(self, notice: Notice) -> None:
        """Tell it.

        Raises:
            TransientError: There is no answer, or one that asks for another try.
            JobError: It does not want this.
        """
        request = urllib.request.Request(  # noqa: S310 - the settings allow http and https only
            self._url,
            data=json.dumps(notice).encode(),
            headers=self._headers,
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=self._timeout_seconds):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            answer = f"has answered with status {error.code}"
            if error.code in _BUSY or error.code >= http.client.INTERNAL_SERVER_ERROR:
                raise NoAnswerError(answer) from None
            raise JobError(answer) from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(f"does not answer ({why_no_answer(error)})") from None
