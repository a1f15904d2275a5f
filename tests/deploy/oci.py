"""Builds images with buildah and runs them with crun, where there is no Docker and no registry.

The base is a Debian made by debootstrap. A container has its own processes, mounts, names and
message queues, and what its service in the Compose file says: command, user, root, volumes,
temporary folders, rights. Its network and its share of the processor are those of a host of
`tests.kit.virtual_cluster`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

SUITE = "bookworm"
PROGRAMS = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "crun": "crun",
    "tini-static": "tini",
}
"""Each with its package in Debian."""

PYTHON = ("ca-certificates", "python3.11-venv", "python3.11-dev")
"""What the base has beside Debian's smallest: what `python:3.11-slim-bookworm` has, too."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""In the base, as Docker's own images have it."""

OWN_VIEW = """\
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
exec "$@"
"""
"""crun 1.8 does not run beside control groups of both versions; it needs none of them here."""

SEES = {
    "/proc": ("proc", []),
    "/dev": ("tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    "/dev/pts": ("devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
    "/dev/mqueue": ("mqueue", ["nosuid", "noexec", "nodev"]),
    "/sys": ("sysfs", ["nosuid", "noexec", "nodev", "ro"]),
}
"""What every container has: path to kind and options."""

INIT = "/sbin/docker-init"
"""Where Docker puts its first process of a container, where the service asks for one."""

TEMPORARY = ("nosuid", "nodev", "noexec", "mode=1777")
"""Docker's options of a temporary folder, before those of the service."""


def why_not():
    """Why no image can be built and run on this machine; empty: it can."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"apt install {' '.join(PROGRAMS[name] for name in missing)}"
    return "" if os.geteuid() == 0 else "needs root"


def pip_settings():
    """What pip is told on this machine, and the folders and files that it is told of.

    Returns:
        The text of a `pip.conf`, and paths.
    """
    listed = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.check_output(listed, text=True).splitlines()
    found = {}
    for line in lines:  # the later ones count: pip's own order, and the environment is the last
        name, _, value = line.partition("=")
        where, _, key = name.rpartition(".")
        if where in {"global", "install", ":env:"} and key != "config-file":
            found[where != "global", key] = value.strip("'\"").replace("\\n", " ")
    settings = {key: value for (_, key), value in sorted(found.items())}
    paths = set()
    for word in " ".join(settings.values()).split():
        url = urlsplit(word)
        if url.scheme == "file":
            paths.add(Path(url.path).parent)  # the pages of an index name files beside it
        elif word.startswith("/"):
            paths.add(Path(word))
    text = "".join(f"{key} = {value}\n" for key, value in settings.items())
    return f"[global]\n{text}", sorted(path for path in paths - {Path("/")} if path.exists())


class Images:
    """The storage of buildah, with the images in it.

    Args:
        folder: For all that is made; nothing is left outside of it.
        kept: For what the next run finds again: the base, and what the builds have cached.
    """

    def __init__(self, folder, kept):
        self.folder = folder
        self._kept = kept
        self._log = folder / "buildah.txt"
        self._env = os.environ | {"TMPDIR": str(kept), "DEBIAN_FRONTEND": "noninteractive"}
        kind = ["stat", "--file-system", "--format=%T", str(folder)]
        is_layered = subprocess.check_output(kind, text=True).strip() == "overlayfs"
        self._driver = "vfs" if is_layered else "overlay"  # one cannot be on top of another one
        self._volumes = self._from_this_machine()

    def _from_this_machine(self):
        """What a build has of this machine: how pip and TLS find their way."""
        text, paths = pip_settings()
        (self.folder / "pip.conf").write_text(text)
        mounts = {path: path for path in [*paths, Path("/etc/ssl/certs")] if path.exists()}
        mounts[self.folder / "pip.conf"] = Path("/etc/pip.conf")
        return [f"--volume={source}:{target}:ro" for source, target in mounts.items()]

    def buildah(self, *words, seconds=120):
        """What buildah prints; what it says otherwise is in the folder, and in an error."""
        own = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")]
        own += ["--storage-driver", self._driver]
        with self._log.open("ab") as log:
            done = subprocess.run(
                ["buildah", *own, *words],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                timeout=seconds,
                check=False,
            )
        printed = done.stdout.decode()
        if done.returncode:
            lines = (self._log.read_text() + printed).splitlines()
            raise RuntimeError("\n".join([shlex.join(words), *lines[-40:]]))
        return printed.strip()

    def make_base(self, name):
        """A Debian with Python, from the archive that debootstrap knows, or as kept."""
        archive = self._kept / f"{SUITE}.tar"
        if not archive.exists():
            root = self.folder / SUITE
            command = ["debootstrap", "--variant=minbase", SUITE, str(root)]
            with self._log.open("ab") as log:
                subprocess.run(command, check=True, stdout=log, stderr=log, env=self._env)
            whole = archive.with_suffix(".new")
            subprocess.run(["tar", "-C", str(root), "-cf", str(whole), "."], check=True)
            shutil.rmtree(root)
            whole.rename(archive)
        recipe = self.folder / "base"
        install = f"apt-get install --yes --no-install-recommends {' '.join(PYTHON)}"
        recipe.write_text(
            f"FROM scratch\nADD {archive.name} /\nENV PATH={PATH}\n"
            f"RUN apt-get update && {install} && apt-get clean && rm -rf /var/lib/apt/lists/*\n"
        )
        self._bud(name, recipe, self._kept)

    def build(self, name, recipe, context, **arguments):
        """Build an image, anew but for what the recipe itself keeps; gives the seconds it took."""
        began = time.monotonic()
        self._bud(name, recipe, context, *self._volumes, **arguments)
        return time.monotonic() - began

    def _bud(self, name, recipe, context, *volumes, **arguments):
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        how = ["--isolation=chroot", "--network=host", "--no-cache", *volumes, *given]
        self.buildah("bud", *how, f"--file={recipe}", f"--tag={name}", str(context), seconds=2000)

    def settings(self, name):
        """What the image says of how it is run: User, WorkingDir, Env, Cmd, StopSignal."""
        return json.loads(self.buildah("inspect", "--type=image", name))["OCIv1"]["config"]

    def root(self, name):
        """The image's files, in a folder; containers that cannot write into it may share it."""
        made = self.buildah("from", "--pull=never", name)
        return Path(self.buildah("mount", made))

    def close(self):
        """Remove the containers and images: gigabytes."""
        self.buildah("rm", "--all")
        for name in ("storage", "run"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


class Container:
    """A service of a Compose file, as a container of crun.

    Args:
        name: Of the service.
        service: What the file says of it.
        settings: Of the image.
        root: The image's files.
        folder: Of the Compose file.
        enter: Words before a command that lead to its network and its quota.
    """

    def __init__(self, name, service, settings, *, root, folder, enter=()):
        self.name = name
        self.log = folder / f"{name}.txt"
        self._folder = folder
        self._enter = ["unshare", "--mount", "sh", "-ec", OWN_VIEW, "sh"]
        self._network = list(enter)
        self._bundle = folder / f"bundle-{name}"
        self._bundle.mkdir()
        self._crun = ["crun", f"--root={folder / 'crun'}", "--cgroup-manager=disabled"]
        self._service = service
        self._number = 0
        self.process = None
        content = self._content(settings, root)
        (self._bundle / "config.json").write_text(json.dumps(content, indent=1))

    def _content(self, settings, root):
        """The OCI's description of the container."""
        service = self._service
        address = service["networks"]["job"]["ipv4_address"]
        hosts = self._bundle / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{address} {self.name}\n")
        user, _, group = str(service["user"]).partition(":")
        variables = dict(word.split("=", 1) for word in settings["Env"])
        variables |= service["environment"]
        none = {name: [] for name in ("bounding", "effective", "permitted")}
        return {
            "ociVersion": "1.0.0",
            "root": {"path": str(root), "readonly": service["read_only"]},
            "hostname": self.name,
            "process": {
                "user": {"uid": int(user), "gid": int(group or user)},
                "args": [*([INIT, "--"] * service["init"]), *self._words(service["command"])],
                "env": [f"{key}={value}" for key, value in variables.items()],
                "cwd": settings["WorkingDir"],
                "capabilities": none if service["cap_drop"] == ["ALL"] else {},
                "noNewPrivileges": "no-new-privileges:true" in service["security_opt"],
            },
            "mounts": [*self._mounts(hosts)],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
        }

    def _mounts(self, hosts):
        for path, (kind, options) in SEES.items():
            yield {"destination": path, "type": kind, "source": kind, "options": options}
        size = self._service["shm_size"].replace("gb", "g")
        temporary = {"/dev/shm": [f"size={size}"]}  # noqa: S108 - the container's
        for entry in self._service["tmpfs"]:
            path, _, given = entry.partition(":")
            temporary[path] = given.split(",") if given else []
        for path, options in temporary.items():
            kind = {"destination": path, "type": "tmpfs", "source": "tmpfs"}
            usual = [word for word in TEMPORARY if word.removeprefix("no") not in options]
            yield {**kind, "options": [*usual, *options]}
        volumes = [volume.split(":") for volume in self._service["volumes"]]
        own = [[str(hosts), "/etc/hosts", "ro"], [str(shutil.which("tini-static")), INIT, "ro"]]
        for source, target, *more in [*volumes, *own]:
            found = str(self._folder / source)
            yield {"destination": target, "source": found, "options": ["rbind", *(more or ["rw"])]}

    def _words(self, words):
        """A command, with what is doubled for Compose."""
        return [word.replace("$$", "$") for word in words]

    def start(self):
        """Its command, as the first process in it."""
        self._number += 1
        words = [*self._crun, "run", f"--bundle={self._bundle}", self._id]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._network, *self._enter, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    @property
    def _id(self):
        return f"{self.name}-{self._number}"

    def do(self, *words, seconds=60):
        """Run a program in it; gives its exit code and what it has printed."""
        run = [*self._crun, "exec", f"--user={self._service['user']}", self._id]
        done = subprocess.run(
            [*self._network, *self._enter, *run, *self._words(words)],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def is_healthy(self):
        """What its health check says."""
        kind, *words = self._service["healthcheck"]["test"]
        return kind == "CMD" and self.do(*words)[0] == 0

    def send(self, kind):
        """A signal to its first process, as `docker stop` and `docker kill` send it."""
        words = [*self._crun, "kill", self._id, signal.Signals(kind).name]
        subprocess.run([*self._enter, *words], check=True, capture_output=True)

    def wait(self, seconds):
        """Its exit code: 128 + N after signal N."""
        return self.process.wait(seconds)

    def said(self):
        """What it has written so far."""
        return self.log.read_text()

    def close(self):
        """End it, if it is still there, with all that it has started."""
        if self.process is not None and self.process.poll() is None:
            subprocess.run(
                [*self._enter, *self._crun, "delete", "--force", self._id],
                capture_output=True,
                check=False,
            )
            self.process.wait(20)
