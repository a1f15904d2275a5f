"""A token that is changed while its server runs."""

from __future__ import annotations

import logging

import pytest

from hetero_hvd.cli import main
from hetero_hvd.security.token import TokenFile

FIRST = b"f" * 20


@pytest.fixture
def path(tmp_path):
    """A file with a token."""
    found = tmp_path / "token"
    found.write_bytes(FIRST)
    found.chmod(0o600)
    return found


def test_another_token_is_taken_at_once(path):
    """`key --replace` writes it; the one before is none any more."""
    token = TokenFile(str(path), "--token-file")
    assert token.current == FIRST
    assert main(["key", "--replace", str(path)]) == 0
    assert token.current == path.read_bytes().strip() != FIRST
    assert [file.name for file in path.parent.iterdir()] == ["token"]


SPOILT = {
    "gone": lambda path: path.unlink(),
    "short": lambda path: path.write_text("short"),
    "open to others": lambda path: (path.write_text("g" * 20), path.chmod(0o644)),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_no_token_changes_nothing(path, caplog, how):
    """It is logged once: nobody is locked out, and nobody let in."""
    token = TokenFile(str(path), "--token-file")
    SPOILT[how](path)
    with caplog.at_level(logging.WARNING):
        assert token.current == token.current == FIRST
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the token before holds on"
    ]
