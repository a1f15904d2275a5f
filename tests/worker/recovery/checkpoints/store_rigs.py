"""A rig of each store of checkpoints: an empty one, and how to damage what is in it."""

from functools import partial

import fsspec

from hetero_hvd.worker.recovery.checkpoints.folder_store import MANIFEST, STATE
from hetero_hvd.worker.recovery.checkpoints.object_store import PAYLOAD
from tests.kit.object_servers import BUCKET


class FolderRig:
    """A store in a folder, and how to damage what is in it.

    Attributes:
        location: Of an empty one.
        shown: The same, for people.
        refused: Of one into which nothing can be put.
    """

    def __init__(self, folder):
        self.folder = folder / "checkpoints"
        self.location = self.shown = str(self.folder)
        self.refused = "/proc/no-such-folder"  # also for root

    def spoil(self, name, content):
        """Put another payload into a checkpoint."""
        (self.folder / name / STATE).write_bytes(content)

    def spoil_manifest(self, name, content):
        """Put something else into the place of its manifest."""
        (self.folder / name / MANIFEST).write_bytes(content)

    def remains(self):
        """What is there but is no checkpoint."""
        return [path for path in self.folder.iterdir() if path.name.startswith(".")]


class FileRig(FolderRig):
    """The same, named by a URL."""

    def __init__(self, folder):
        super().__init__(folder / "a name")
        self.location = self.folder.as_uri()
        self.refused = "file:///proc/no-such-folder"


class ObjectRig:
    """A store behind a server; see `FolderRig`."""

    def __init__(self, scheme, folder):
        self.location = self.shown = f"{scheme}://{BUCKET}/{folder.name}/checkpoints"
        self.refused = f"{scheme}://no-such-bucket/checkpoints"
        self._files, self._root = fsspec.core.url_to_fs(self.location, use_listings_cache=False)

    def _payload(self, name):
        (key,) = [key for key in self._files.find(f"{self._root}/{name}") if key.endswith(PAYLOAD)]
        return key

    def spoil(self, name, content):
        """See `FolderRig`."""
        self._files.pipe_file(self._payload(name), content)

    def spoil_manifest(self, name, content):
        """See `FolderRig`."""
        self._files.pipe_file(f"{self._root}/{name}/{MANIFEST}", content)

    def remains(self):
        """See `FolderRig`."""
        keys = self._files.find(self._root)
        complete = {key.rpartition("/")[0] for key in keys if key.endswith(MANIFEST)}
        return [key for key in keys if key.rpartition("/")[0] not in complete]


RIGS = {"": FolderRig, "file": FileRig} | {
    scheme: partial(ObjectRig, scheme) for scheme in ("s3", "gs")
}
PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
