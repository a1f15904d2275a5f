"""live.json: where the page of a run is, in its folder while it has one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hetero_hvd.run.records.run_files import regular

NAME = "live.json"


class LivePage(msgspec.Struct):
    """What a driver has written into its folder.

    Attributes:
        url: Of the page, without a slash at the end.
        token_file: File with the token for looking; None: none is needed.
    """

    url: str
    token_file: str | None = None


def announced(folder: Path) -> LivePage | None:
    """Where the page of a run is; None: it has none, or what is there tells none."""
    try:
        with open(folder / NAME, "rb", opener=regular) as file:
            return msgspec.json.decode(file.read(), type=LivePage)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
