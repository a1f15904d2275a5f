"""A token that is changed while its server runs."""

from __future__ import annotations

import os

import pytest

from hetero_hvd.cli import main
from hetero_hvd.run.web.access import Access
from hetero_hvd.security.token import TokenFile
from tests.hub.tokens import token_files

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
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_text("short"),
    "too long": lambda path: path.write_text("g" * 5000),
    "no text": lambda path: path.write_bytes(b"\xff" * 20),
    "open to others": lambda path: path.chmod(0o644),
    "another's, open to others": lambda path: (path.write_text("g" * 20), path.chmod(0o644)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}
OPERATE = "Bearer " + "f" * 20


def mend(path):
    """Put a new token where the spoilt one is."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(b"n" * 20)


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_is_spoilt_lets_nobody_in(path, how):
    """Neither with the token before, nor with another or none; it is told once, and so is its end.

    A server of which only the token to operate is spoilt still shows who asks.
    """
    said = []
    token = TokenFile(str(path), "job.http_operate_token_file", said.append)
    access = Access(address="127.0.0.1", operate=token)
    assert access.may("operate", OPERATE)
    SPOILT[how](path)
    for shown in (OPERATE, "Bearer " + "g" * 20, "Bearer ", "", "Bearer short"):
        assert not access.may("operate", shown)
        assert not access.may("ingest", shown)
        assert access.may("read", shown)
        assert not Access(address="127.0.0.1", read=token).may("read", shown)
    assert "cannot be used, so nobody may until it is mended" in access.why_not("operate", OPERATE)
    access.look()
    (told,) = said
    assert told.startswith("job.http_operate_token_file: ")
    assert told.endswith("; nobody has this token until the file is mended")
    mend(path)
    assert not access.may("operate", OPERATE)
    assert access.may("operate", "Bearer " + "n" * 20)
    assert said[1:] == [f"job.http_operate_token_file: {path} is read again"]


NOT_THAT = "the token is not that of the role 'operate' here, which is in the file that OPERATE "
NEEDED = "needs the token of the role 'operate': enter it on the page, or send Authorization: "
WRONG = {
    "none": ("operate", "", NEEDED),
    "another one": ("operate", "Bearer x", NOT_THAT),
    "that of another role": ("operate", "Bearer " + "r" * 20, NOT_THAT),
    "of another form": ("operate", "Basic x", NEEDED),
    "to look": ("read", "Bearer x", "the file that READ names: add #token=TOKEN to the page's"),
    "one that there is not": ("queue", "Bearer x", "without a token of the role 'queue'"),
}
"""The role, what is shown for it, and what is said."""


@pytest.mark.parametrize(("role", "shown", "words"), WRONG.values(), ids=WRONG)
def test_who_may_not_learns_what_is_wrong_and_what_to_do(tmp_path, role, shown, words):
    """No token and a wrong one are two things; no token of ours, and no path, is told."""
    found = token_files(tmp_path / "t", "read", "operate")
    for name, file in found.items():
        file.setting = name.upper()
    access = Access(address="127.0.0.1", **found)
    assert not access.may(role, shown)
    said = access.why_not(role, shown)
    assert words in said
    assert str(tmp_path) not in said
    assert "ooo" not in said
