"""The cluster key's file."""

from __future__ import annotations

import os

import pytest

from hetero_hvd.errors import UserError
from hetero_hvd.security.cluster_key import make_key, read_key


def test_a_key_is_secret_and_never_overwritten(tmp_path):
    """256 bits, mode 0600, each time others; an existing file stays as it is."""
    make_key(tmp_path / "a")
    make_key(tmp_path / "b")
    key = read_key(tmp_path / "a")
    assert len(key) == 32 != read_key(tmp_path / "b")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="exists already"):
        make_key(tmp_path / "a")
    assert read_key(tmp_path / "a") == key


def test_who_has_no_key_is_told_how_to_get_one(tmp_path):
    """The first machine makes it, the others have a copy."""
    with pytest.raises(UserError, match=f"copy it .* hetero-hvd key {tmp_path / 'none'}"):
        read_key(tmp_path / "none")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610])
def test_a_key_that_others_can_touch_is_refused(tmp_path, mode):
    """The message says what to do."""
    make_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(UserError, match="chmod 600"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize("content", [b"", b"00", b"zz" * 32, b"\xff" * 64, b"00" * 33])
def test_what_is_no_key_is_refused(tmp_path, content):
    """One clear line, no traceback."""
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(UserError, match="is no cluster key"):
        read_key(tmp_path / "key")


SECRETS = {"a key": f"{'0f' * 32}\n", "a token": "s" * 20, "nothing yet": ""}
OTHERS = {
    "a script": lambda path: path.write_text("import torch\nprint(1)\n"),
    "much": lambda path: path.write_text("s" * 5000),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to(path.with_name("theirs")),
    "a link to a device": lambda path: path.symlink_to("/dev/null"),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("content", SECRETS.values(), ids=SECRETS.keys())
def test_a_secret_is_replaced_by_another(tmp_path, content):
    """What is there is gone."""
    (tmp_path / "key").write_text(content)
    make_key(tmp_path / "key", replaces=True)
    assert len(read_key(tmp_path / "key")) == 32


@pytest.mark.parametrize("made", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_secret_is_not_replaced(tmp_path, made):
    """It stays as it is, and nothing is left beside it."""
    (tmp_path / "theirs").write_text("s" * 20)
    made(tmp_path / "key")
    before = sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir())
    with pytest.raises(UserError, match=r"key: (cannot be replaced|is not a file with a key)"):
        make_key(tmp_path / "key", replaces=True)
    assert sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir()) == before
    assert (tmp_path / "theirs").read_text() == "s" * 20
