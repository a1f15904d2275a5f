"""A rig for each kind of place that data are read from: an address, and how files come there."""

import functools
import http.server
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fsspec

from hetero_hvd.data.source import Source
from tests.kit.data.faulty_proxy import faulty_proxy
from tests.kit.data.hub_server import REPOSITORY, TOKEN, hub_server
from tests.kit.object_servers import BUCKET, object_server


class Rig:
    """A place with files.

    Attributes:
        url: Of an empty folder.
        proxy: What can spoil its answers; None: nothing does.
        options: For its `Source`, beside those of the test.
        says_tags: Whether it tells something of a file's content.
        environment: In which it is found.
        has_files: Whether the test of all places has put its files there.
    """

    def __init__(self, url, *, proxy=None, options=None, says_tags=False):
        self.url = url
        self.proxy = proxy
        self.options = options or {}
        self.says_tags = says_tags
        self.environment = {}
        self.has_files = False

    def put(self, name, content):
        """A file is there from now on."""
        files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        files.pipe_file(f"{root}/{name}", content)

    def fill(self, contents):
        """Put several files, by name."""
        for name, content in contents.items():
            self.put(name, content)

    def open(self, folder, **arguments):
        """A folder of the place as a source."""
        return Source(f"{self.url}/{folder}", **{**self.options, **arguments})

    def arguments(self, **more):
        """For a data set: its URL, and what goes to its source."""
        return {"url": self.url, **self.options, **more}


class FolderRig(Rig):
    """A folder of this machine."""

    def __init__(self, folder, url=None):
        super().__init__(url or str(folder))
        self.folder = folder

    def put(self, name, content):
        """See `Rig`."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextmanager
def path_rig(folder):
    """A path."""
    yield FolderRig(folder / "files")


@contextmanager
def file_rig(folder):
    """The same as a URL."""
    yield FolderRig(folder / "files", (folder / "files").as_uri())


@contextmanager
def memory_rig(folder):
    """Memory of this process."""
    yield Rig(f"memory://{folder.name}")


@contextmanager
def http_rig(folder):
    """A web server with index pages, which knows no ranges."""
    (folder / "files").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Nothing is told."""

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with faulty_proxy(f"http://127.0.0.1:{server.server_port}") as proxy:
            rig = FolderRig(folder / "files", f"{proxy.url}/files")
            rig.proxy = proxy
            yield rig
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def object_rig(scheme, variable, folder):
    """An object store."""
    with ExitStack() as stack:
        server = stack.enter_context(object_server(scheme, folder))
        proxy = stack.enter_context(faulty_proxy(server.environment[variable]))
        rig = Rig(f"{scheme}://{BUCKET}/{Path(folder).name}", proxy=proxy, says_tags=True)
        rig.environment = {**server.environment, variable: proxy.url}
        yield rig


class HubRig(Rig):
    """A data set of a hub."""

    def __init__(self, hub, proxy):
        options = {"storage_options": {"endpoint": proxy.url, "token": TOKEN}}
        super().__init__(
            f"hf://datasets/{REPOSITORY}", proxy=proxy, options=options, says_tags=True
        )
        self._hub = hub

    def put(self, name, content):
        """See `Rig`."""
        self._hub.files[name] = content


@contextmanager
def hub_rig(_folder):
    """A hub."""
    with hub_server() as hub, faulty_proxy(hub.url) as proxy:
        yield HubRig(hub, proxy)


RIGS = {
    "path": path_rig,
    "file": file_rig,
    "memory": memory_rig,
    "http": http_rig,
    "s3": functools.partial(object_rig, "s3", "AWS_ENDPOINT_URL"),
    "hf": hub_rig,
    "gs": functools.partial(object_rig, "gs", "STORAGE_EMULATOR_HOST"),
}
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "http": "aiohttp", "hf": "huggingface_hub"}
SERVED = [name for name in RIGS if name in PACKAGES]
"""Those behind a server."""
