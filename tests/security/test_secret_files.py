"""Keys, certificates with their keys and tokens in files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import UserError
from hetero_hvd.security.cluster_key import make_key, read_key
from hetero_hvd.security.secret_files import write_secret
from hetero_hvd.security.tls import read_bundle
from hetero_hvd.security.token import read_token

READERS = {
    "cluster key": read_key,
    "TLS file": read_bundle,
    "token": lambda path: read_token(str(path), "--token-file"),
}
PLACES = {
    "missing": (lambda _: None, "No such file"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a pipe to which nobody writes": (os.mkfifo, "no regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "a link that leads nowhere": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "a link to itself": (lambda path: path.symlink_to(path), "Too many levels"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_one_line_and_nobody_waits(reader, place, tmp_path):
    """An agent that waits at a pipe tells nobody why."""
    make, words = PLACES[place]
    path = tmp_path / "secret"
    make(path)
    with pytest.raises(UserError) as caught:
        READERS[reader](path)
    (line,) = str(caught.value).splitlines()
    assert str(path) in line
    assert words in line


TOKENS = {
    "empty": b"",
    "short": b"a" * 15,
    "zeros, as of a file with a hole": bytes(5000),
    "too long": b"a" * 5000,
    "two lines": b"a" * 20 + b"\n" + b"b" * 20,
    "a return inside": b"a" * 20 + b"\r" + b"b" * 20,
    "a control character": b"a" * 20 + b"\x1b[1m",
    "not ASCII": "ä".encode() * 20,
}


@pytest.mark.parametrize("case", TOKENS)
def test_what_no_header_can_show_is_no_token(case, tmp_path):
    """Else the page would be there, and nobody could look at it."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(TOKENS[case])
    with pytest.raises(UserError, match="must hold one line of 16 or more"):
        read_token(str(path), "--token-file")


@pytest.mark.parametrize("content", [b"a" * 16, b"a" * 4096, b"\n aaaaaaaa bbbbbbbb~ \r\n"])
def test_what_a_header_can_show_is_a_token(content, tmp_path):
    """Blanks around it do not count."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(content)
    assert read_token(str(path), "--token-file") == content.strip()


WRITERS = {
    "cluster key": (["key"], "cluster.key"),
    "certificates": (["certificates", "folder", "alpha"], "folder/authority.pem"),
}
FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
from hetero_hvd.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("writer", WRITERS)
def test_a_secret_without_room_leaves_nothing_behind(writer, tmp_path, monkeypatch):
    """Half a key would be in the way of the next try, which overwrites none."""
    words, name = WRITERS[writer]
    done = subprocess.run(
        [sys.executable, "-B", "-c", FULL, *words],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"{name}: cannot be made: File too large" in done.stderr
    assert not (tmp_path / name).exists()
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0


COPIED = {
    "key": (r"cluster\.key: as a cluster key it is copied, .* each node that runs an agent",),
    "key token": (
        r"token: as a cluster key .*; nodes that ssh or srun reaches need none, nor does",
    ),
    "key certificates tls driver alpha": (
        r"tls/driver\.pem: copy it to the driver's machine, if that is another one, over a safe",
        r"tls/alpha\.pem: copy it to alpha over a safe way",
    ),
}


@pytest.mark.parametrize("line", COPIED)
def test_who_needs_a_copy_of_a_secret_is_told(tmp_path, monkeypatch, capsys, line):
    """And who does not."""
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 0
    said = capsys.readouterr().out.splitlines()
    assert [bool(re.match(*pair)) for pair in zip(COPIED[line], said, strict=True)] == [True] * len(
        said
    )


KINDS = {"a file": Path.touch, "a folder": Path.mkdir, "a link": lambda p: p.symlink_to("nowhere")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [make_key, lambda path: write_secret(path, b"x")])
def test_what_is_there_is_never_overwritten(kind, write, tmp_path):
    """Whatever it is."""
    KINDS[kind](tmp_path / "secret")
    with pytest.raises(UserError, match="exists already"):
        write(tmp_path / "secret")
