"""The file of a running job: read again, swapped as a whole, never replaced by something broken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from hetero_hvd.config.resolve import parse_cluster
from hetero_hvd.config.yaml_document import read_content
from hetero_hvd.errors import ConfigError


class NodesFile:
    """nodes.yaml together with the environment and the flags that the job was started with.

    `refresh` belongs to one thread; `current` may be read from any, since it is replaced by one
    assignment.

    Args:
        path: The file.
        environment: As for `load_cluster`.
        flags: As for `load_cluster`.

    Attributes:
        current: The newest good settings.

    Raises:
        ConfigError: The file, the environment or the flags are wrong.
    """

    def __init__(
        self, path: Path, environment: Mapping[str, str], flags: Mapping[str, object]
    ) -> None:
        self._path = path
        self._environment = dict(environment)
        self._flags = dict(flags)
        self._seen: bytes | str = read_content(path)
        self.current = parse_cluster(
            self._seen, path, environment=self._environment, flags=self._flags
        )

    def refresh(self) -> Literal["unchanged", "changed"] | ConfigError:
        """Read the file again. The driver calls it about once a second.

        The content is compared, not the time of change: a file of this size is read faster than a
        coarse clock would mislead us.

        Returns:
            `changed` if `current` has new settings (not for a new comment or other lines); the
            error, once for each broken content, if the file is wrong now: `current` stays.
        """
        try:
            content = read_content(self._path)
        except ConfigError as error:
            is_new = self._seen != str(error)
            self._seen = str(error)
            return error if is_new else "unchanged"
        if content == self._seen:
            return "unchanged"
        self._seen = content
        try:
            cluster = parse_cluster(
                content, self._path, environment=self._environment, flags=self._flags
            )
        except ConfigError as error:
            return error
        is_same = cluster == self.current
        self.current = cluster
        return "unchanged" if is_same else "changed"
