"""What is below a place: names, sizes and tags of its files, and its folders."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from hetero_hvd.core.data.file_sets import FileFacts
from hetero_hvd.data.file_system import WEB, as_os_errors
from hetero_hvd.errors import UserError

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What is no file: who reads it may wait for ever."""


class FoundFiles(NamedTuple):
    """What is there.

    Attributes:
        files: Those that are wanted, in any order; relative names.
        num_others: Files beside them.
        folders: Names of the folders at the top, also of those without files where there are such.
        is_file: Whether the place is one file.
    """

    files: list[FileFacts]
    num_others: int
    folders: set[str]
    is_file: bool


def found_below(files: Any, root: str, scheme: str, suffixes: tuple[str, ...]) -> FoundFiles:  # noqa: ANN401
    """List a place.

    Args:
        files: The file system of fsspec behind it.
        root: Its path there.
        scheme: Of its URL.
        suffixes: Of the names of the files that are wanted, in lower case; empty: all.

    Raises:
        OSError: It cannot be listed.
        UserError: What has such a name is no file.
    """
    if scheme in ("", "file"):
        return _walked(Path(root), suffixes)
    with as_os_errors():
        infos = files.find(root, withdirs=True, detail=True)
        own = {root.rstrip("/"), f"{root.rstrip('/')}/"}  # a file; the folder's page or marker
        is_file = root in infos and infos.keys() <= own
        if is_file:
            infos = {root: files.info(root)}
        infos = infos if is_file else {p: i for p, i in infos.items() if p not in own}
        if scheme in WEB:
            infos = _with_sizes(files, infos)
    found, folders = [], set()
    for path, info in infos.items():
        name = path.removeprefix(root).strip("/") or path.rpartition("/")[2]
        name = unquote(name) if scheme in WEB else name
        if info.get("type") == "directory":
            folders |= {name} if "/" not in name else set()
        elif scheme not in WEB or "?" not in path:
            found.append(facts_of(name, info))
            folders |= {name.partition("/")[0]} if "/" in name else set()
    wanted = [file for file in found if is_wanted(file.name, suffixes)]
    return FoundFiles(wanted, len(found) - len(wanted), folders, is_file)


def facts_of(name: str, info: Mapping[str, Any]) -> FileFacts:
    """A file by what fsspec says of it."""
    return FileFacts(name, _size(info), _tag(info))


def is_wanted(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file is none that is hidden, and of one of these kinds."""
    is_hidden = any(part.startswith(".") for part in name.split("/"))
    return not is_hidden and (not suffixes or name.lower().endswith(suffixes))


def _walked(root: Path, suffixes: tuple[str, ...]) -> FoundFiles:
    """The same of a place on this machine."""
    if root.is_dir():
        return _walked_folder(root, suffixes)
    if not root.exists():
        raise FileNotFoundError(f"no such file or folder on {os.uname().nodename}: {root}")
    size = _size_of_file(str(root))
    found = [FileFacts(root.name, size)] if is_wanted(root.name, suffixes) else []
    return FoundFiles(found, 1 - len(found), set(), is_file=True)


def _walked_folder(root: Path, suffixes: tuple[str, ...]) -> FoundFiles:
    found, folders, num_others = [], set(), 0
    top = len(root.parts)

    def refuse(error: OSError) -> None:
        raise error

    chains = {str(root): frozenset({_identity(str(root))})}
    for folder, below, names in os.walk(root, followlinks=True, onerror=refuse):
        parts = Path(folder).parts[top:]
        _leave_out_loops(folder, below, chains)
        folders |= set() if parts else set(below)
        for name in names:
            relative = "/".join([*parts, name])
            if is_wanted(relative, suffixes):
                size = _size_of_file(os.path.join(folder, name))  # noqa: PTH118 - fast
                found.append(FileFacts(relative, size))
            else:
                num_others += 1
    return FoundFiles(found, num_others, folders, is_file=False)


def _leave_out_loops(
    folder: str, below: list[str], chains: dict[str, frozenset[tuple[int, int]]]
) -> None:
    """Walk into no folder that is one of those above it, to which a link leads back.

    Args:
        folder: Where the walk is.
        below: Names of its folders, of which those that are loops are taken out.
        chains: Of each folder that is yet to be walked, which ones are above it, with itself.
    """
    above, kept = chains.pop(folder), []
    for name in below:
        path = os.path.join(folder, name)  # noqa: PTH118 - as `os.walk` does
        own = _identity(path)
        if own not in above:
            chains[path] = above | {own}
            kept.append(name)
    below[:] = kept


def _identity(path: str) -> tuple[int, int]:
    """Of a folder, by whatever name."""
    found = os.stat(path)  # noqa: PTH116 - fast
    return found.st_dev, found.st_ino


def _size_of_file(path: str) -> int:
    """In bytes.

    Raises:
        UserError: It is no file.
    """
    found = os.stat(path)  # noqa: PTH116 - fast
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise UserError(f"data at {path}: is {kind}: must be a file: take it out, or rename it")
    return found.st_size


def _with_sizes(files: Any, infos: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """An index page does not tell the sizes: each file is asked for its own."""
    unknown = [p for p, info in infos.items() if info["type"] == "file" and not info.get("size")]
    found = files.sizes(unknown) if unknown else []
    sizes = dict(zip(unknown, found, strict=True))
    return {p: {**info, "size": sizes.get(p, info.get("size"))} for p, info in infos.items()}


def _size(info: Mapping[str, Any]) -> int:
    size = info.get("size")
    return -1 if size is None else int(size)


def _tag(info: Mapping[str, Any]) -> str:
    """What a store says of a content, as `kind:value`."""
    if md5 := info.get("md5Hash"):
        try:
            return f"md5:{base64.b64decode(md5, validate=True).hex()}"
        except (binascii.Error, ValueError):
            return f"opaque:{md5}"
    lfs = info.get("lfs")
    digest = getattr(lfs, "sha256", None) or (lfs.get("sha256") if isinstance(lfs, dict) else None)
    if digest:
        return f"sha256:{digest}"
    for name in ("ETag", "etag", "blob_id", "crc32c"):
        if value := info.get(name):
            return f"{name.lower()}:{str(value).strip(chr(34))}"
    return ""
