"""Makes an environment on a node: beside the one that is there, whose place it takes at the end.

PATH is a link to a folder PATH-…, which holds a virtual environment and our mark. A new one is
made in a folder of its own, tried, and then the link is replaced in one operation: whatever breaks
on the way, the earlier environment stays. The one before stays until the next time, for whoever
still works with it.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import venv
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, Any

MARK = "hetero-hvd-install.json"
"""In a folder that we made: what is in it, once that is complete."""

SILENCE_SECONDS = 60
"""Without anything more from the driver it is gone: a link that was cut does not say so, and others
may be waiting. Its ssh has given up by then."""

SCRIPT = """#!{python}
import sys
from {module} import {name}
sys.exit({attribute}())
"""

_locks: list[IO[str]] = []  # held until this process ends, however that happens


def look(path: str) -> dict[str, Any]:
    """Say what is here, and keep others from installing at the same time, unless one does already.

    Args:
        path: Of the environment, from the home of who logs in.
    """
    link = Path(path)
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "libc": platform.libc_ver()[0],
        "path": str(link.absolute()),
        "fingerprint": None,
        "packages": [],
        "free_bytes": 0,
        "is_foreign": os.path.lexists(link) and not _is_ours(link),
        "is_busy": False,
    }
    if facts["is_foreign"]:
        return facts
    link.parent.mkdir(parents=True, exist_ok=True)
    facts["free_bytes"] = shutil.disk_usage(link.parent).free
    lock = link.with_name(f".{link.name}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return facts | {"is_busy": True}
    _locks.append(lock)
    signal.signal(signal.SIGALRM, _end_waiting)
    signal.alarm(SILENCE_SECONDS)
    if (link / "bin" / "python").exists():  # the system's, which it names, may be gone
        facts["fingerprint"] = _mark(link).get("fingerprint")
        site = next(link.glob("lib/python3*/site-packages"), link)
        facts["packages"] = _names(site)
    return facts


def _names(site: Path) -> list[str]:
    """The distributions in a folder; one whose metadata are damaged or gone has no name."""
    found = set()
    for one in distributions(path=[str(site)]):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            found.update(one.metadata.get_all("Name", []))
    return sorted(name for name in found if name)


def install(path: str, fingerprint: str, num_files: int, imports: list[str]) -> str:
    """Make an environment of the archive on standard input; returns the path of its interpreter.

    Args:
        path: As for `look`, which comes first.
        fingerprint: Of what is in the archive.
        num_files: In the archive, so that one that was cut off is not taken for a whole one.
        imports: Modules to try.
    """
    signal.alarm(0)  # the driver has answered; what is done here may take its time
    link = Path(path).absolute()
    for folder in _left_over(link):
        with suppress(OSError):  # it is still in use, or somebody else's: that costs space only
            _remove(folder)
    folder = Path(tempfile.mkdtemp(prefix=f"{link.name}-", dir=link.parent))
    try:
        (folder / MARK).write_text("{}")
        folder.chmod(0o755)
        _fill(folder, num_files)
        python = folder / "bin" / "python"
        _try(python, imports)
        (folder / MARK).write_text(json.dumps({"fingerprint": fingerprint}))
        fresh = link.with_name(f".{link.name}.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder.name)
        fresh.replace(link)
    except BaseException:
        with suppress(OSError):
            _remove(folder)
        raise
    return str(link / "bin" / "python")


def _remove(folder: Path) -> None:
    """Take a folder of ours away, its mark last: if this is interrupted it is still known as ours.

    Without its mark it is as `mkdtemp` has made it.

    Raises:
        OSError: Something of it cannot be removed.
    """
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != MARK:
            each.unlink()
    folder.chmod(0o700)
    shutil.rmtree(folder)


def _left_over(link: Path) -> list[Path]:
    """The folders that we made for this link, but for the one that it names."""
    pattern = glob.escape(link.name) + "-" + 8 * "[a-z0-9_]"  # as of `mkdtemp`; a link has another
    return [
        folder
        for folder in link.parent.glob(pattern)
        if _may_be_removed(folder) and not folder.is_symlink() and not _is_same(folder, link)
    ]


def _may_be_removed(folder: Path) -> bool:
    """Whether it has our mark, or is as `mkdtemp` makes one, which is marked right after that."""
    try:
        if (folder / MARK).exists():
            return True
        found = folder.stat()
        is_as_made = found.st_uid == os.getuid() and found.st_mode & 0o777 == stat.S_IRWXU
        return is_as_made and not any(folder.iterdir())
    except OSError:  # it cannot be read, or is no folder
        return False


def _is_same(folder: Path, link: Path) -> bool:
    return link.exists() and folder.samefile(link)


def _end_waiting(*_: object) -> None:
    raise TimeoutError(f"nothing came for {SILENCE_SECONDS} s")


class _ArchiveInput:
    """Standard input, as far as something comes."""

    def read(self, size: int) -> bytes:
        """Some bytes.

        Raises:
            TimeoutError: None came.
        """
        signal.alarm(SILENCE_SECONDS)
        try:
            return sys.stdin.buffer.read(size)
        finally:
            signal.alarm(0)


def _is_ours(link: Path) -> bool:
    """Whether we made it; also where somebody has removed the folder to which it leads."""
    if not link.is_symlink():
        return False
    is_of_our_folder = str(link.readlink()).startswith(f"{link.name}-")
    return (link / MARK).exists() or (is_of_our_folder and not link.exists())


def _mark(link: Path) -> dict[str, Any]:
    try:
        found = json.loads((link / MARK).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _fill(folder: Path, num_files: int) -> None:
    """Unpack the archive into a new virtual environment."""
    venv.EnvBuilder(symlinks=True).create(folder)
    site = folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    done = 0
    with tarfile.open(fileobj=_ArchiveInput(), mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            archive.extract(member, site, **_SAFE)
            done += 1
    if done != num_files:
        raise EOFError(f"only {done} of {num_files} files came")
    for distribution in distributions(path=[str(site)]):
        for entry in distribution.entry_points.select(group="console_scripts"):
            name = entry.attr.partition(".")[0]
            script = folder / "bin" / entry.name
            script.write_text(
                SCRIPT.format(
                    python=folder / "bin" / "python",
                    module=entry.module,
                    name=name,
                    attribute=entry.attr,
                )
            )
            script.chmod(0o755)


_SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""What is unpacked stays in its folder, where this Python can see to that."""


def _try(python: Path, modules: list[str]) -> None:
    """Import what has to work; that also compiles it."""
    tried = subprocess.run(
        [python, "-c", "\n".join(f"import {module}" for module in modules)],
        cwd=os.sep,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if tried.returncode:
        last = tried.stderr.strip().rpartition("\n")[2] or f"it ended with {tried.returncode}"
        raise ImportError(f"what was installed cannot be imported there: {last}")
