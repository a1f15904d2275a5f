"""What making an environment leaves alone on a node; that it works is tried on hosts, over ssh."""

import errno
import fcntl
import io
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_hvd.remote.programs import environment_program
from hetero_hvd.remote.programs.environment_program import MARK, install, look


@pytest.fixture(autouse=True)
def locks(monkeypatch):
    """Those of a test end with it."""
    held = []
    monkeypatch.setattr(environment_program, "_locks", held)
    yield held
    for lock in held:
        lock.close()


def make(folder, name, *, is_linked, fingerprint="f"):
    """A folder of an environment, as `install` leaves it."""
    made = folder / name
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(sys.executable)
    (made / MARK).write_text(json.dumps({"fingerprint": fingerprint}))
    if is_linked:
        (folder / name.rpartition("-")[0]).symlink_to(name)
    return made


@pytest.mark.parametrize("way", ["real", "by_link"])
def test_an_installation_that_breaks_leaves_what_others_use(tmp_path, monkeypatch, way):
    """The one in use, whatever links lead there, and those of another name; not older ones."""
    folder = tmp_path / "real"
    (tmp_path / "by_link").symlink_to(folder)
    in_use = make(folder, "env-a2345678", is_linked=True)
    other = make(folder, "env-gpu-a2345678", is_linked=True)
    older = make(folder, "env-b2345678", is_linked=False)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    with pytest.raises(Exception, match="empty file"):
        install(str(tmp_path / way / "env"), "g", 1, [])
    assert sorted(folder.iterdir()) == sorted([in_use, other, folder / "env", folder / "env-gpu"])
    assert not older.exists()


@pytest.mark.parametrize("num_done", [None, *range(6)])
def test_what_an_ended_process_leaves_goes_with_the_next_installation(
    tmp_path, monkeypatch, num_done
):
    """It was ended while it took its folder away, after so many removals, or before its mark."""
    removed = []

    def counted(known):
        def remove(name, *more, **named):
            if len(removed) == num_done:
                raise KeyboardInterrupt
            removed.append(name)
            known(name, *more, **named)

        return remove

    if num_done is None:
        (tmp_path / "env-b2345678").mkdir(0o700)
    else:
        made = make(tmp_path, "env-b2345678", is_linked=False)
        (made / "pyvenv.cfg").touch()
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(os, "unlink", counted(os.unlink))
            patch.setattr(os, "rmdir", counted(os.rmdir))
            environment_program._remove(made)
        assert len(removed) == num_done
    theirs = tmp_path / "env-c2345678"  # of somebody else, by chance
    theirs.mkdir()
    (theirs / "file").touch()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    with pytest.raises(Exception, match="empty file"):
        install(str(tmp_path / "env"), "g", 1, [])
    assert list(tmp_path.iterdir()) == [theirs]


def refuse(*_, **__):
    """As of a folder that is mounted, or of a server that is gone."""
    raise OSError(errno.EBUSY, "busy")


OTHERS = {
    "as it is made": (0o700, (), False),
    "as it is made where a folder hands its group on": (0o2700, (), False),
    "open to others": (0o755, (), True),
    "closed": (0o000, (), True),
    "somebody else's": (0o700, (os, "getuid", lambda: -1), True),
    "nobody can list it": (0o700, (Path, "iterdir", refuse), True),
    "nobody can look into it": (0o700, (Path, "exists", refuse), True),
    "it cannot be removed": (0o700, (environment_program, "_remove", refuse), True),
}
"""Mode of an empty folder, what is changed, and whether it stays."""


@pytest.mark.parametrize(("mode", "change", "stays"), OTHERS.values(), ids=OTHERS)
def test_an_empty_folder_goes_only_if_we_have_made_it(tmp_path, monkeypatch, mode, change, stays):
    """Of a name like ours; one that stays does not stop an installation."""
    found = tmp_path / "env-datasets"
    found.mkdir()
    found.chmod(mode)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    monkeypatch.setattr(environment_program.venv.EnvBuilder, "create", lambda *_: None)
    with monkeypatch.context() as patch:
        if change:
            patch.setattr(*change)
        with pytest.raises(Exception, match="empty file"):
            install(str(tmp_path / "env"), "g", 1, [])
    assert os.path.lexists(found) == stays


def test_an_environment_without_its_python_is_none(tmp_path):
    """The system's Python, which it names, was replaced by another version."""
    made = make(tmp_path, "env-a2345678", is_linked=True)
    path = str(tmp_path / "env")
    assert look(path)["fingerprint"] == "f"
    environment_program._locks.pop().close()
    (made / "bin" / "python").unlink()
    (made / "bin" / "python").symlink_to("/no/python3.11")
    assert look(path)["fingerprint"] is None


METADATA = {
    "whole": ("Name: Some_Package\nVersion: 1\n", ["Some_Package"]),
    "empty": ("", []),
    "without a name": ("Version: 1\n", []),
    "no text": (b"\xff\xfe\x00", []),
    "gone": (None, []),
}


@pytest.mark.parametrize(("content", "names"), METADATA.values(), ids=METADATA.keys())
def test_damaged_metadata_of_a_package_stop_nothing(tmp_path, content, names):
    """It is not named; the others are."""
    made = make(tmp_path, "env-a2345678", is_linked=True)
    site = made / "lib" / "python3.11" / "site-packages"
    for folder in ("other-1", "package-1"):
        (site / f"{folder}.dist-info").mkdir(parents=True)
    (site / "other-1.dist-info" / "METADATA").write_text("Name: other\nVersion: 1\n")
    if content is not None:
        told = content if isinstance(content, bytes) else content.encode()
        (site / "package-1.dist-info" / "METADATA").write_bytes(told)
    assert look(str(tmp_path / "env"))["packages"] == sorted([*names, "other"])


def test_one_installs_at_a_time(tmp_path, locks):
    """Others are told so, and may ask again."""
    path = str(tmp_path / "env")
    with (tmp_path / ".env.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert look(path)["is_busy"]
        assert not locks
    assert not look(path)["is_busy"]
    assert len(locks) == 1


@pytest.mark.parametrize("slow", ["removing old ones", "making it"])
def test_what_is_done_before_files_are_awaited_is_no_silence(tmp_path, monkeypatch, slow):
    """An old environment of gigabytes on a slow disk: the driver has said all it had to say."""
    monkeypatch.setattr(environment_program, "SILENCE_SECONDS", 1)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    make(tmp_path, "env-b2345678", is_linked=False)
    module = environment_program.shutil if slow == "removing old ones" else environment_program.venv
    name = "rmtree" if slow == "removing old ones" else "EnvBuilder"
    real = getattr(module, name)

    def slowly(*given, **more):
        time.sleep(1.3)
        return real(*given, **more)

    monkeypatch.setattr(module, name, slowly)
    look(str(tmp_path / "env"))
    with pytest.raises(Exception, match="empty file"):
        install(str(tmp_path / "env"), "g", 1, [])
