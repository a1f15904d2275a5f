"""Who answers that the answer is elsewhere gets no further request."""

import http.server
import threading
import urllib.error
import urllib.request

import pytest

from hetero_hvd.security.http_requests import NoRedirects


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirection_is_an_error(code):
    """Of whatever kind."""
    asked = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(code)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            """Nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects())
    try:
        with pytest.raises(urllib.error.HTTPError) as found:
            opener.open(f"http://127.0.0.1:{server.server_port}/here", timeout=10)
        found.value.close()
    finally:
        server.shutdown()
        server.server_close()
    assert (found.value.code, asked) == (code, ["/here"])
