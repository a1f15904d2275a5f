"""What a node needs to train: distributions of this environment, as one stream of files."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import hetero_hvd
from hetero_hvd.errors import MissingPackageError, UserError
from hetero_hvd.probes.training_packages import how_to_get
from hetero_hvd.remote.node_program import Input
from hetero_hvd.remote.programs.examination_program import digest_of

OWN_NAME = "hetero_hvd"
TRAINING = "hetero_hvd[train]"
IMPORTS = ("torch", "horovod.torch", "hetero_hvd")
PACKAGE = Path(hetero_hvd.__file__).parent
_OF_AN_EDITABLE = ("direct_url.json", "RECORD")
"""Files of a distribution's metadata that are true on this machine only."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Distributions as they are installed here.

    Attributes:
        versions: Name to version.
        files: Path in site-packages to the file here; without what Python compiles by itself.
        num_bytes: Of all files.
        fingerprint: Equal for equal software on an equal kind of machine.
        python: Version of this interpreter, as major.minor.
        imports: Modules that must be there, to be tried on the node.
    """

    versions: dict[str, str]
    files: dict[str, Path]
    num_bytes: int
    fingerprint: str
    python: str
    imports: tuple[str, ...]

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Which distributions it does not have, however their names are spelt."""
        own = set(map(_key, self.versions))
        return sorted(name for name in names if _key(name) not in own)

    def write(self, stream: Input, on_bytes: Callable[[int], None]) -> None:
        """Write all files as a tar archive.

        Not compressed: on a local network that would take longer than it saves, and ssh can do it
        (`ssh_options: {Compression: "yes"}`).

        Args:
            stream: Takes it.
            on_bytes: Is told how many bytes of files were written so far.

        Raises:
            UserError: A file cannot be read here, or is written to meanwhile.
        """
        done = 0
        with tarfile.open(fileobj=stream, mode="w|", dereference=True, bufsize=2**18) as archive:  # type: ignore[call-overload]
            for name, path in self.files.items():
                try:
                    archive.add(path, name, recursive=False)
                    done += path.stat().st_size
                except OSError as error:
                    why = error.strerror or str(error)
                    raise UserError(f"{path} cannot be read here: {why}; correct that") from error
                on_bytes(done)


def make_bundle(wanted: Sequence[str], imports: Sequence[str] = IMPORTS) -> Bundle:
    """Collect distributions with all that they need.

    Args:
        wanted: Their names, with extras, as for pip.
        imports: Modules that the node must be able to import.

    Raises:
        MissingPackageError: One of them is not installed here.
        UserError: One of the names is none, or what it stands for lies elsewhere.
    """
    found = _closure(wanted)
    files: dict[str, Path] = {}
    for distribution in found.values():
        _refuse_editable(distribution)
        files |= _files(distribution)
    versions = {d.name: d.version for d in sorted(found.values(), key=lambda one: one.name)}
    records = [found[name].read_text("RECORD") for name in sorted(found) if name != _key(OWN_NAME)]
    kind = (sys.version_info[:2], platform.machine(), platform.libc_ver()[0])
    facts = (kind, sorted(versions.items()), records, digest_of(PACKAGE))
    return Bundle(
        versions=versions,
        files=dict(sorted(files.items())),
        num_bytes=sum(path.stat().st_size for path in files.values()),
        fingerprint=hashlib.sha256(repr(facts).encode()).hexdigest(),
        python="{}.{}".format(*sys.version_info[:2]),
        imports=tuple(imports),
    )


def _key(name: str) -> str:
    return str(canonicalize_name(name))


def _closure(wanted: Sequence[str]) -> dict[str, Distribution]:
    """Installed distributions with all that they need, by their canonical names."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    try:
        waiting = [(Requirement(name), "") for name in wanted]
    except InvalidRequirement as error:
        raise UserError(f"--with: {error}".partition("\n")[0]) from error
    while waiting:
        requirement, who = waiting.pop()
        key = _key(requirement.name)
        try:
            found[key] = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError as error:
            what = f"{requirement.name}{f', which {who} needs,' if who else ''}"
            raise MissingPackageError(
                f"{what} is not installed in {sys.prefix}, and a node gets what is installed here: "
                f"{how_to_get(requirement.name)}"
            ) from error
        for extra in {"", *requirement.extras}:
            if (key, extra) not in seen:
                seen.add((key, extra))
                waiting += [
                    (needed, requirement.name)
                    for needed in map(Requirement, found[key].requires or ())
                    if needed.marker is None or needed.marker.evaluate({"extra": extra})
                ]
    return found


def _refuse_editable(distribution: Distribution) -> None:
    """Refuse what is here by a link to its source only; ours is known to be sent whole."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable") and _key(distribution.name) != _key(OWN_NAME):
        raise UserError(
            f"{distribution.name} is installed as editable, and its files are in {origin['url']}, "
            "which a node has not: pip install it without --editable"
        )


def _files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution in site-packages; scripts are made on the node."""
    is_own = _key(distribution.name) == _key(OWN_NAME)
    if is_own:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield str(path.relative_to(PACKAGE.parent)), path
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        is_metadata = file.parts[0].endswith((".dist-info", ".egg-info"))
        is_left = is_own and (not is_metadata or file.name in _OF_AN_EDITABLE)
        is_inside = ".." not in file.parts and not file.is_absolute()
        if is_inside and not is_left and file.suffix != ".pyc" and path.is_file():
            yield file.as_posix(), path
