"""A rig of each store of checkpoints: an empty one, and how to damage what is in it."""

import inspect
from functools import partial
from pathlib import Path

import fsspec
import torch

from hetero_hvd.worker.recovery.checkpoints.folder_store import MANIFEST, STATE
from hetero_hvd.worker.recovery.checkpoints.object_store import PAYLOAD
from hetero_hvd.worker.recovery.checkpoints.registry import store_at
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints, CheckpointSettings
from hetero_hvd.worker.recovery.replica import Replica
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

    def spoil_part(self, name, part, content):
        """Put something else into the place of a part; None: nothing."""
        if content is None:
            (self.folder / name / part).unlink()
        else:
            (self.folder / name / part).write_bytes(content)

    def spoil_manifest(self, name, content):
        """Put something else into the place of its manifest."""
        (self.folder / name / MANIFEST).write_bytes(content)

    def fail(self, monkeypatch, name, what, error):
        """Raise an error where a checkpoint's manifest or payload is read, or the list of all."""
        parts = {"manifest": [name, MANIFEST], "payload": [name, STATE], "list": []}
        place = self.folder.joinpath(*parts[what])
        for call in ("read_bytes", "iterdir"):
            monkeypatch.setattr(Path, call, _unless(place, error, getattr(Path, call)))

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

    def spoil_part(self, name, part, content):
        """See `FolderRig`."""
        manifest = dict(store_at(self.location).listed())[name]
        (digest,) = [each.sha256 for each in manifest.parts if each.name == part]
        keys = self._files.find(f"{self._root}/{name}")
        (key,) = [key for key in keys if key.endswith(f"{digest}{PAYLOAD}")]
        if content is None:
            self._files.rm_file(key)
        else:
            self._files.pipe_file(key, content)

    def spoil_manifest(self, name, content):
        """See `FolderRig`."""
        self._files.pipe_file(f"{self._root}/{name}/{MANIFEST}", content)

    def fail(self, monkeypatch, name, what, error):
        """See `FolderRig`."""
        files = store_at(self.location)._files
        place = {
            "manifest": f"{self._root}/{name}/{MANIFEST}",
            "payload": self._payload(name),
            "list": self._root,
        }[what]
        for call in ("cat_file", "_cat_file", "find"):
            monkeypatch.setattr(files, call, _unless(place, error, getattr(files, call)))

    def remains(self):
        """See `FolderRig`."""
        keys = self._files.find(self._root)
        complete = {key.rpartition("/")[0] for key in keys if key.endswith(MANIFEST)}
        return [key for key in keys if key.rpartition("/")[0] not in complete]


def _unless(place, error, call):
    """A call that raises an error where it is about one place."""

    def made(given, *arguments, **options):
        if given == place:
            raise error
        return call(given, *arguments, **options)

    async def awaited(*arguments, **options):
        return await made(*arguments, **options)

    return awaited if inspect.iscoroutinefunction(call) else made


RIGS = {"": FolderRig, "file": FileRig} | {
    scheme: partial(ObjectRig, scheme) for scheme in ("s3", "gs")
}
PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}


def training(seed=0):
    """A model, as a replica."""
    torch.manual_seed(seed)
    return Replica({"model": torch.nn.Linear(4, 3)})


def keeper(rig, replica=None, trainer=1, **settings):
    """Checkpoints in a store."""
    wanted = CheckpointSettings(**{"folder": rig.location, "run": "one", **settings})
    return Checkpoints(wanted, replica or training(), trainer)


def save(checkpoints, *arguments):
    """Write one and wait for it."""
    checkpoints.save(*arguments)
    checkpoints.wait()
