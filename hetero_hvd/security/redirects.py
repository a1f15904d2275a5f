"""HTTP requests that go where they were sent, and nowhere else."""

from __future__ import annotations

import urllib.request


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """For urllib: an answer that sends elsewhere is an error."""

    def redirect_request(self, *_: object) -> None:
        """Called by urllib; None: the answer is an error."""
