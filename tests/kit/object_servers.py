"""Object stores on this machine: S3's by moto, Google's by an emulator; each with a bucket."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

BUCKET = "bucket"
START_SECONDS = 60.0

S3 = """
import time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("port:", server.get_host_and_port()[1], flush=True)
time.sleep(86400)
"""
GS = """
import time
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
server.start()
print("port:", server._api._httpd.server_address[1], flush=True)
time.sleep(86400)
"""


class ObjectServer(NamedTuple):
    """One that runs.

    Attributes:
        pid: Of its process.
        environment: In which fsspec finds it.
    """

    pid: int
    environment: dict[str, str]


@contextmanager
def object_server(scheme: str, folder: Path) -> Iterator[ObjectServer]:
    """Run a server until the block ends.

    Args:
        scheme: s3 or gs.
        folder: For what it prints.
    """
    said = folder / f"{scheme}.log"
    with said.open("wb") as log:
        words = [sys.executable, "-c", {"s3": S3, "gs": GS}[scheme]]
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(r"port: (\d+)", said.read_text(errors="replace"))):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(said.read_text(errors="replace"))
            time.sleep(0.05)
        environment = ENVIRONMENTS[scheme](f"http://127.0.0.1:{found[1]}")
        if scheme == "s3":
            _make_bucket(environment)
        yield ObjectServer(process.pid, environment)
    finally:
        process.kill()
        process.wait()


ENVIRONMENTS = {
    "s3": lambda url: {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tester",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    },
    "gs": lambda url: {
        "STORAGE_EMULATOR_HOST": url,
        "FSSPEC_GS_TOKEN": "anon",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks by gRPC, which the emulator has not
    },
}


def _make_bucket(environment: dict[str, str]) -> None:
    words = f"import s3fs; s3fs.S3FileSystem(skip_instance_cache=True).mkdir({BUCKET!r})"
    vector = [sys.executable, "-c", words]
    subprocess.run(vector, env=os.environ | environment, check=True, timeout=START_SECONDS)
