"""Looks at a node with the eyes of a worker there: software, files, network, clock, room."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

GREETING_SECONDS = 3.0
"""For a connection in one network, and for its token."""

PACKAGES = ("hetero_hvd", "horovod", "torch")
SHM = Path("/dev/shm")  # noqa: S108 - it is looked at, nothing is written there
_SIOCGIFADDR = 0x8915
_ASK = """
import json, platform, sys
from importlib import metadata, util
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
versions = {name: version(name) for name in sys.argv[1:]} | {"python": platform.python_version()}
spec = util.find_spec("hetero_hvd")
package = spec.submodule_search_locations[0] if spec else None
print(json.dumps({"versions": versions, "package": package}), flush=True)
if spec:
    from hetero_hvd.probes.doctor import diagnose
    print(json.dumps({"diagnosis": diagnose().as_dict()}))
"""
"""Runs with the environment of a worker. One line of JSON for each thing that worked."""


def clock() -> float:
    """The node's wall clock."""
    return time.time()


class TokenListener:
    """Answers whoever knows a token, and nobody else.

    Args:
        address: Where.
        token: What he has to know.
        answer: What tells him that it is us.

    Raises:
        OSError: The address is none of this machine.
    """

    def __init__(self, address: str, token: str, answer: str) -> None:
        self._token = token.encode()
        self._answer = answer.encode()
        self._server = socket.create_server((address, 0))
        self.port: int = self._server.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # else the thread would wait for ever
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                connection.settimeout(GREETING_SECONDS / 3)
                if hmac.compare_digest(connection.recv(len(self._token)), self._token):
                    connection.sendall(self._answer)


def try_to_reach(address: str, port: int, token: str, answer: str) -> str:
    """Why a listener cannot be reached; empty if it can."""
    try:
        with socket.create_connection((address, port), timeout=GREETING_SECONDS) as connection:
            connection.sendall(token.encode())
            if not hmac.compare_digest(connection.recv(len(answer)), answer.encode()):
                return "somebody else answers there"
    except OSError as error:
        return error.strerror or str(error)
    return ""


_listeners: list[TokenListener] = []


def listen(driver: list[Any], interface: str | None, token: str, answer: str) -> dict[str, Any]:
    """Listen where the other nodes will reach this one, and try to reach the driver.

    Args:
        driver: Address and port.
        interface: That nodes.yaml names; else the one on the way to the driver.
        token: As for `TokenListener`.
        answer: As for `TokenListener`.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface:
            request = struct.pack("256s", interface.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError as error:
                raise OSError(f"interface {interface}: {error.strerror}") from error
            address = socket.inet_ntoa(found[20:24])
        else:
            probe.connect((driver[0], 9))  # sends nothing
            address = probe.getsockname()[0]
    _listeners.append(TokenListener(address, token, answer))
    why_not = try_to_reach(driver[0], driver[1], token, answer)
    return {"address": address, "port": _listeners[-1].port, "driver": why_not}


def reach(peers: dict[str, list[Any]], token: str, answer: str) -> dict[str, str]:
    """Name of each other node to why it cannot be reached.

    Args:
        peers: Name to address and port.
        token: As for `TokenListener`.
        answer: As for `TokenListener`.
    """
    with ThreadPoolExecutor(max(len(peers), 1)) as pool:
        found = pool.map(lambda peer: try_to_reach(peer[0], peer[1], token, answer), peers.values())
        return dict(zip(peers, found, strict=True))


def look(
    directory: str,
    script: str | None,
    paths: list[str],
    environment: dict[str, str],
    limit_seconds: float,
) -> dict[str, Any]:
    """Say what is here.

    Args:
        directory: Where the script is to run.
        script: Its path from there.
        paths: Files and folders that its arguments name.
        environment: Added to that of this process for what a worker would import.
        limit_seconds: For importing all of it.
    """
    folder = Path(os.path.expanduser(directory))  # noqa: PTH111 - of an unknown user it says nothing
    directory_error = _why_not(f"{folder}/.")  # there, a folder, and one that may be entered
    facts: dict[str, Any] = {
        "interpreter": sys.argv[-1],
        "directory": directory_error is None,
        "directory_error": directory_error,
        "script": None,
        "missing": [path for path in paths if _why_not(folder / path)],
        "disk_bytes": _free_bytes(_nearest(folder)),
        "shm_bytes": _free_bytes(SHM),
    }
    if script is not None:
        with suppress(OSError):
            facts["script"] = hashlib.sha256((folder / script).read_bytes()).hexdigest()
    for line in _asked(environment, limit_seconds).splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            facts |= found if isinstance(found, dict) else {}
    package = facts.get("package")
    facts["digest"] = None
    with suppress(OSError):
        facts["digest"] = digest_of(Path(package)) if package else None
    return facts


def _why_not(path: str | Path) -> str | None:
    """Why a path cannot be looked at, in the words of the system; None: it can."""
    try:
        os.stat(path)  # noqa: PTH116 - a Path has no `.` at its end
    except OSError as error:
        return error.strerror or str(error)
    return None


def _free_bytes(folder: Path) -> int | None:
    """Of the disk below a folder; None: it does not say."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return None


def _nearest(folder: Path) -> Path:
    """The folder, or the one in which it could be made, as far as this user may look."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if _why_not(path) is None)


def _asked(environment: dict[str, str], seconds: float) -> str:
    try:
        return subprocess.run(
            [sys.executable, "-c", _ASK, *PACKAGES],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace")


def digest_of(package: Path) -> str:
    """Equal for packages with equal files; what Python compiles by itself does not count.

    Raises:
        OSError: A folder or file of it cannot be read. (`Path.rglob` passes over such folders.)
    """

    def fail(error: OSError) -> None:
        raise error

    walk = os.walk(package, onerror=fail)
    paths = [Path(folder, name) for folder, _, names in walk for name in names]
    digest = hashlib.sha256()
    for path in sorted(paths):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(package)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
