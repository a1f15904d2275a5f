"""`hetero-hvd config`: every setting and its source."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.lines import add_json, show_json
from hetero_hvd.cli.settings import add_nodes_file, add_settings, load
from hetero_hvd.config import effective_settings


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_nodes_file(command)
    add_json(command)
    add_settings(command)


def act(arguments: argparse.Namespace) -> int:
    """Print one line a setting."""
    rows: list[tuple[str, str, str]] = list(effective_settings(load(arguments).current))
    if arguments.json:
        show_json([dict(zip(("setting", "value", "source"), row, strict=True)) for row in rows])
        return 0
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for at, value, source in rows:
        print(f"{at:{wide[0]}}  {value:{wide[1]}}  {source}")
    return 0
