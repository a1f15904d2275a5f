"""The file of a running job: read again, swapped as a whole, never replaced by something broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from hetero_hvd.config.cluster import ClusterConfig
from hetero_hvd.config.resolve import parse_cluster
from hetero_hvd.config.yaml_document import read_content
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
        granted: As for `parse_cluster`.

    Attributes:
        current: The newest good settings.

    Raises:
        ConfigError: The file, the environment or the flags are wrong.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        environment: Mapping[str, str],
        flags: Mapping[str, object],
        granted: bytes = b"",
    ) -> None:
        self._paths = tuple(paths)
        self._granted = granted
        self._environment = dict(environment)
        self._flags = dict(flags)
        files = self._read()
        self._seen: list[tuple[Path, bytes]] | str = files
        self.current = self._parsed(files)

    def refresh(self) -> Literal["unchanged", "changed"] | ConfigError:
        """Read the file again. The driver calls it about once a second.

        The content is compared, not the time of change: a file of this size is read faster than a
        coarse clock would mislead us.

        Returns:
            `changed` if `current` has new settings (not for a new comment or other lines); the
            error, once for each broken content, if the file is wrong now: `current` stays.
        """
        try:
            files = self._read()
        except ConfigError as error:
            is_new = self._seen != str(error)
            self._seen = str(error)
            return error if is_new else "unchanged"
        if files == self._seen:
            return "unchanged"
        self._seen = files
        try:
            cluster = self._parsed(files)
        except ConfigError as error:
            return error
        is_same = cluster == self.current
        self.current = cluster
        return "unchanged" if is_same else "changed"

    def _read(self) -> list[tuple[Path, bytes]]:
        return [(path, read_content(path)) for path in self._paths]

    def _parsed(self, files: Sequence[tuple[Path, bytes]]) -> ClusterConfig:
        return parse_cluster(
            files, environment=self._environment, flags=self._flags, granted=self._granted
        )
