"""What a job takes with it: its script, or a line that says why it could not."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile

import pytest

from hetero_hvd.discovery.submission import queue_client
from hetero_hvd.discovery.submission.pinned_script import check_texts
from hetero_hvd.discovery.submission.queue_client import submit
from hetero_hvd.discovery.submission.working_tree import packed_tree
from hetero_hvd.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder from which a job is submitted, with others beside it."""
    own = tmp_path / "own"
    (own / "sub").mkdir(parents=True)
    (own / "train.py").write_text("pinned")
    (own / "sub" / "other.py").write_text("")
    (own / "folder.py").mkdir()
    (own / "common.py").symlink_to(tmp_path / "common.py")
    (own / "data").symlink_to(tmp_path / "data")
    (tmp_path / "common.py").write_text("of all")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(own)
    return own


@pytest.fixture
def submitted(monkeypatch):
    """What the queue is told, instead of it."""
    found = []

    def order(asked, tree, _socket):
        found.append((asked.submitted, tree))
        return {"job": 1}

    monkeypatch.setattr(queue_client, "order", order)
    return found


PINNED = {
    "as it is": (["train.py", "-x"], ["train.py", "-x"]),
    "by its whole name": (["{own}/train.py"], ["train.py"]),
    "in a folder": (["./sub/other.py"], ["sub/other.py"]),
    "of an interpreter": (["python3", "{own}/train.py"], ["python3", "train.py"]),
    "a module": (["python", "-m", "sub.other"], ["python", "-m", "sub.other"]),
    "a program": (["torchrun", "../x.py"], ["torchrun", "../x.py"]),
}


@pytest.mark.parametrize(("command", "expected"), PINNED.values(), ids=PINNED.keys())
def test_the_script_is_that_of_the_working_tree(folder, submitted, command, expected):
    """However it is named: the file itself may change while the job waits."""
    assert submit([word.format(own=folder) for word in command]) == 1
    assert submitted[0][0].command == expected


REFUSED = {
    "not there": (["trian.py"], r"trian\.py: no such file in .*/own; did you mean train\.py\?"),
    "outside": (["../common.py"], r"\.\./common\.py: lies outside of .*/own, whose files a job"),
    "elsewhere": (["/etc/x.py"], r"/etc/x\.py: lies outside of "),
    "a folder": (["folder.py"], r"folder\.py: git ignores it|folder\.py: no such file"),
    "ignored": (["ignored.py"], r"ignored\.py: git ignores it, so it would stay behind"),
    "no word": ([""], "submit: after -- comes a script or a program"),
    "an option": (["-x"], "submit: after -- comes a script or a program"),
    "nothing": ([], "submit: after -- comes a script or a program"),
    "no text": (["train.py", "\udcff"], r"submit: the argument '\\udcff' is no UTF-8"),
}


@pytest.mark.parametrize(("command", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_not_be_a_part_of_the_job_is_refused(folder, submitted, command, words):
    """Before anything is told to the queue."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("ignored.py\n")
    (folder / "ignored.py").write_text("")
    with pytest.raises(UserError, match=f"^{words}") as refused:
        submit(command)
    assert len(refused.value.lines) == 1
    assert not submitted


def test_an_environment_that_is_no_text_is_named(monkeypatch):
    """Its value may be a secret."""
    monkeypatch.setitem(os.environb, b"ODD", b"\xffsecret")
    with pytest.raises(UserError, match=r"^submit: the environment variable 'ODD' is no UTF-8"):
        check_texts([], os.environ.items())


@pytest.mark.parametrize("has_git", [True, False])
def test_a_module_that_is_a_link_is_taken_and_data_stays_a_link(folder, has_git):
    """What is edited where a link leads would reach the job."""
    if has_git:
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed_tree(folder))) as archive:
        common, data = archive.getmember("common.py"), archive.getmember("data")
        assert archive.extractfile(common).read() == b"of all"
        assert data.issym()


def test_a_folder_that_was_removed_is_said(submitted, tmp_path, monkeypatch):
    """Whoever removes the folder under a shell still submits from there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match=r"^submit: this folder is not there any more"):
        submit(["train.py"])
    assert not submitted
