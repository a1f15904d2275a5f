"""Real servers for sinks, each its own: PostgreSQL and Redis as Debian has them; and receivers."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

PASSWORD = "s3cret@Horse/battery"  # noqa: S105 - of servers that live as long as a test
PASSWORD_IN_URL = "s3cret%40Horse%2Fbattery"  # noqa: S105


def postgresql_programs():
    """Folder of PostgreSQL's server; None: there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def free_port():
    """One that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def wait_until(is_ready, seconds=30.0):
    """Until it is so."""
    deadline = time.monotonic() + seconds
    while not is_ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def accepts(port):
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@contextmanager
def postgresql():
    """A cluster of its own, by the user `postgres` where this one is root; gives its port."""
    programs, user = postgresql_programs(), "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    words = folder / "password"
    words.write_text(PASSWORD)
    if user:
        for path in (folder, words):
            shutil.chown(path, user, user)
    data, port = folder / "data", free_port()
    command = [programs / "initdb", "-D", data, "-A", "scram-sha-256", "-U", "trainer"]
    command += ["--no-sync", "--no-locale", "-E", "UTF8", "--pwfile", words]
    subprocess.run(command, check=True, capture_output=True, user=user, cwd=folder)
    command = [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1"]
    command += ["-k", folder, "-c", "fsync=off"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stderr=log, stdout=log, user=user, cwd=folder)
    try:
        wait_until(lambda: b"ready to accept" in (folder / "log").read_bytes())
        yield port
    finally:
        server.terminate()  # a smart shutdown waits for clients, of which there are none
        with suppress(subprocess.TimeoutExpired):
            server.wait(10)
        server.kill()
        server.wait()
        shutil.rmtree(folder)


@contextmanager
def redis_server(folder, port=None):
    """A Redis that wants the password and keeps nothing; gives its port."""
    port = port or free_port()
    words = folder / "redis.conf"
    words.write_text(
        f'port {port}\nbind 127.0.0.1\nsave ""\nrequirepass {PASSWORD}\ndir {folder}\n'
    )
    server = subprocess.Popen(["redis-server", words], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: accepts(port))
        yield port
    finally:
        server.terminate()
        server.wait()


@contextmanager
def silent_port():
    """One that accepts, reads and never answers; gives it."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept():
            with suppress(OSError):
                while True:
                    kept.append(listening.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what is posted."""

    def do_POST(self):
        """Keep it, and answer as the test wants."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers.get("Authorization"), body))
        status = self.server.answers.pop(0) if self.server.answers else 204
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def receiver(*answers):
    """An HTTP server; gives it, with `requests` and `url`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.requests = []
    server.answers = list(answers)
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
