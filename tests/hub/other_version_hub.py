"""A hub of another version: `other_version_hub.py SCHEMA PROTOCOL OLDEST hub WORD...`.

It is this one with other numbers: an earlier schema lacks what the later ones have added, a later
one has a column more. Journals are sealed when they have 20 kB.
"""

from __future__ import annotations

import importlib
import sys

COLUMNS = {1: 5, 2: 7}
"""Of sessions, by the schema."""

RUNS = 3
"""The first schema that has them."""

LATER = "ALTER TABLE sessions ADD COLUMN later TEXT;"


def main():
    """Run it."""
    schema, protocol, oldest = map(int, sys.argv[1:4])
    index = importlib.import_module("hetero_hvd.hub.storage.index")
    index.SESSION_COLUMNS = index.SESSION_COLUMNS[: COLUMNS.get(schema)]
    index.MIGRATIONS = (*index.MIGRATIONS, LATER)[:schema]
    if schema < RUNS:
        index.HubIndex.runs = lambda _: []
    link = importlib.import_module("hetero_hvd.discovery.hub_link")
    link.PROTOCOL = protocol
    link.OLDEST_PROTOCOL = oldest
    store = importlib.import_module("hetero_hvd.hub.storage.store")
    store.SEAL_BYTES = 20_000
    return importlib.import_module("hetero_hvd.cli").main(sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
