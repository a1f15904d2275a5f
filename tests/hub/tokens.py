"""Tokens of the roles of a server, as files."""

from __future__ import annotations

from hetero_hvd.security.token import TokenFile

TOKENS = {"read": b"r" * 20, "ingest": b"i" * 20, "operate": b"o" * 20}


def token_files(folder, *roles):
    """Of these roles, as a server reads them."""
    folder.mkdir(exist_ok=True)
    found = {}
    for role in roles:
        path = folder / f"{role}.token"
        path.touch(0o600)
        path.write_bytes(TOKENS[role])
        found[role] = TokenFile(str(path), role)
    return found
