"""The file of a running job: read again, swapped as a whole, never replaced by something broken."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from hetero_hvd.config.cluster import ClusterConfig
from hetero_hvd.config.resolve import parse_cluster
from hetero_hvd.config.yaml_document import compose, names_in, read_content
from hetero_hvd.errors import ConfigError


class NodesFile:
    """nodes.yaml together with the environment and the flags that the job was started with.

    `refresh` belongs to one thread; `current` may be read from any, since it is replaced by one
    assignment.

    Args:
        paths: The file, or several of which each changes those before it; none: there is only what
            was granted.
        environment: As for `load_cluster`.
        flags: As for `load_cluster`.
        granted: As for `parse_cluster`; where that changes, a function that gives it.
        absent: Takes the place of the file while it is not there, or not yet; None: it has to be.

    Attributes:
        current: The newest good settings.
        not_granted: Names of nodes that the files list in vain, at the beginning.

    Raises:
        ConfigError: The file, the environment or the flags are wrong.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        environment: Mapping[str, str],
        flags: Mapping[str, object],
        granted: bytes | Callable[[], bytes] = b"",
        absent: bytes | None = None,
    ) -> None:
        self._absent = absent
        self._paths = tuple(paths)
        self._follows_lender = callable(granted)
        self._granted = granted if callable(granted) else lambda: granted
        self._environment = dict(environment)
        self._flags = dict(flags)
        found = self._read()
        self._seen: tuple[list[tuple[Path, bytes]], bytes] | str = found
        self.current = self._parsed(*found)
        self.not_granted = self._listed_in_vain(found[0]) if granted else ()

    def refresh(self) -> Literal["unchanged", "changed"] | ConfigError:
        """Read the file again. The driver calls it about once a second.

        The content is compared, not the time of change: a file of this size is read faster than a
        coarse clock would mislead us.

        Returns:
            `changed` if `current` has new settings (not for a new comment or other lines); the
            error, once for each broken content, if the file is wrong now: `current` stays.
        """
        try:
            found = self._read()
        except ConfigError as error:
            is_new = self._seen != str(error)
            self._seen = str(error)
            return error if is_new else "unchanged"
        if found == self._seen:
            return "unchanged"
        self._seen = found
        try:
            cluster = self._parsed(*found)
        except ConfigError as error:
            return error
        is_same = cluster == self.current
        self.current = cluster
        return "unchanged" if is_same else "changed"

    def _read(self) -> tuple[list[tuple[Path, bytes]], bytes]:
        if self._absent is not None and not any(map(os.path.lexists, self._paths)):
            return [], self._absent
        return [(path, read_content(path)) for path in self._paths], self._granted()

    def _listed_in_vain(self, files: Sequence[tuple[Path, bytes]]) -> tuple[str, ...]:
        used = {node.name for node in self.current.nodes}
        listed = (name for path, content in files for name in names_in(compose(content, path)))
        return tuple(name for name in dict.fromkeys(listed) if name not in used)

    def _parsed(self, files: Sequence[tuple[Path, bytes]], granted: bytes) -> ClusterConfig:
        return parse_cluster(
            files,
            environment=self._environment,
            flags=self._flags,
            granted=granted,
            follows_lender=self._follows_lender,
        )
