"""Where the checkpoints of the run to go on from are."""

import errno
import os
from pathlib import Path

import pytest

from hetero_hvd.errors import JobError
from hetero_hvd.messages import CheckpointWritten, RunStarted
from hetero_hvd.run.records.earlier_run import EarlierRun, earlier_run, run_of_folder

from .test_records import write

URL = "s3://bucket/one"


@pytest.fixture
def folder(tmp_path):
    """Of a run."""
    found = tmp_path / "run"
    found.mkdir()
    return found


def started(url):
    """A run with that setting."""
    return RunStarted(run_id="r", command=("x",), nodes=(), settings={"checkpoint_url": url})


def test_a_url_is_taken_as_it_stands():
    """Whether anything is there is for the workers to say."""
    assert earlier_run(URL) == EarlierRun(folder=None, checkpoints=URL)


@pytest.mark.parametrize("urls", [(), ("None",), (URL,)])
def test_those_in_the_folder_are_taken(folder, urls):
    """Also where a later try in it had another place."""
    if urls:
        write(folder, *map(started, urls))
    (folder / "checkpoints").mkdir()
    found = earlier_run(folder)
    assert found == EarlierRun(folder=folder, checkpoints=str(folder / "checkpoints"))
    assert Path(found.checkpoints).is_absolute()


@pytest.mark.parametrize("urls", [(URL,), ("None", URL), ("s3://bucket/other", URL)])
def test_the_address_of_the_newest_start_is_in_the_record(folder, urls):
    """Where there are none in the folder."""
    write(folder, *map(started, urls))
    assert earlier_run(folder) == EarlierRun(folder=folder, checkpoints=URL)


def kept(place, run, trainer=1):
    """A checkpoint that is written there."""
    path = f"{place}/step-000000000007-{run}" + f"-trainer{trainer}" * (trainer > 1)
    return CheckpointWritten(
        step=7, path=path, num_bytes=1, metrics={}, is_best=False, trainer=trainer
    )


OTHER, AWAY = "s3://bucket/other", "/on/another/machine/checkpoints"
HISTORIES = {
    "in the folder": ([started(""), kept("{own}", "aa")], True, ("{own}",)),
    "on the disk of another machine": ([started(""), kept(AWAY, "aa")], False, (AWAY,)),
    "of a folder that was moved": ([started(""), kept(AWAY, "aa")], True, ("{own}",)),
    "in a store": ([started(URL), kept(URL, "aa")], False, (URL, "aa")),
    "first in the folder, then in a store": (
        [started(""), kept("{own}", "aa"), started(URL), kept(URL, "bb")],
        True,
        (URL, "bb"),
    ),
    "first in a store, then in the folder": (
        [started(URL), kept(URL, "aa"), started(""), kept("{own}", "bb")],
        True,
        ("{own}",),
    ),
    "in the folder, and not yet in a store": (
        [started(""), kept("{own}", "aa"), started(URL)],
        True,
        ("{own}",),
    ),
    "by several starts and trainers": (
        [
            started(URL),
            kept(URL, "aa"),
            kept(URL, "aa", 2),
            started(URL),
            kept(URL, "b-trainer2"),
        ],
        False,
        (URL, "aa", "b-trainer2"),
    ),
    "in one store, then in another one": (
        [started(URL), kept(URL, "aa"), started(OTHER), kept(OTHER, "bb")],
        False,
        (OTHER, "bb"),
    ),
}
"""What is recorded, whether there are checkpoints in the folder, and where to go on: the place, and
which runs are meant there."""


@pytest.mark.parametrize("case", HISTORIES)
def test_where_the_newest_one_was_kept_the_run_goes_on(folder, case):
    """Not where an earlier start kept its own, nor with what another run has in the same store."""
    events, is_there, (place, *runs) = HISTORIES[case]
    own = str(folder / "checkpoints")
    write(folder, *events)
    if is_there:
        (folder / "checkpoints").mkdir()
    wanted = EarlierRun(folder=folder, checkpoints=place.format(own=own), runs=tuple(runs))
    assert earlier_run(folder) == wanted


def unrecorded(folder):
    """A run of which the catalogue is damaged."""
    (folder / "run.sqlite").write_bytes(b"no database")


def file_instead(folder):
    """A file has that name."""
    folder.rmdir()
    folder.touch()


def in_runs(folder):
    """The run is in runs/."""
    folder.rmdir()
    (Path("runs") / folder.name).mkdir(parents=True)


NO_START = "its record run.sqlite tells of no start; if the run had a checkpoint_url, name that"
NO_RUN = "no run is recorded there, nor kept; "
NOT_KEPT = "that run has kept no checkpoint: there is no folder 'checkpoints' in it; start without"
WITHOUT = {
    "no folder": (lambda folder: folder.rmdir(), "there is no such folder; "),
    "a folder in runs/": (in_runs, "there is no such folder: runs/run is one; "),
    "a file": (file_instead, "it is no folder; name the folder of a run; "),
    "a link to nowhere": (
        lambda folder: (folder.rmdir(), folder.symlink_to("gone")),
        "it is a link to what is not there; name the folder of a run; ",
    ),
    "an empty folder": (lambda _: None, NO_RUN),
    "a damaged record": (unrecorded, NO_START),
    "a record without a start": (write, NO_RUN),
    "a run that kept nothing": (lambda folder: write(folder, started("None")), NOT_KEPT),
}


@pytest.mark.parametrize(("make", "words"), WITHOUT.values(), ids=WITHOUT)
def test_a_run_without_checkpoints_is_one_line(folder, monkeypatch, make, words):
    """With what there is in its place, and what to do."""
    monkeypatch.chdir(folder.parent)
    make(folder)
    with pytest.raises(JobError) as error:
        earlier_run(Path(folder.name))
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"--resume {folder.name}: {words}")
    assert words in (NOT_KEPT, NO_START) or line.endswith("`hetero-hvd runs` lists those in runs/")


def test_a_checkpoint_is_no_run(tmp_path):
    """Its path is what a job's last line names."""
    place = tmp_path / "step-000000000012-b7795d16-trainer2"
    place.mkdir()
    (place / "manifest.json").touch()
    store = tmp_path.as_uri()
    words = f"that is a checkpoint; name the folder of its run, or {store} for the newest one there"
    with pytest.raises(JobError, match=f"^--resume {place}: {words}$"):
        earlier_run(place)


@pytest.mark.parametrize("name", ["one", "One_2-b", "a" * 63])
def test_a_folder_names_the_run_of_all_starts(tmp_path, monkeypatch, name):
    """Whether it is there yet or not, and however it is written."""
    monkeypatch.chdir(tmp_path)
    for output in (Path(name), tmp_path / name, Path("x") / ".." / name):
        assert run_of_folder(output) in (
            EarlierRun(folder=None, checkpoints="", name=name),
            EarlierRun(folder=output, checkpoints="", name=name),
        )
    assert run_of_folder(Path(name)).folder is None
    Path(name).mkdir()
    assert run_of_folder(Path(name)).folder == Path(name)


@pytest.mark.parametrize("name", ["a.b", "a b", "ä", "a" * 64, "/"])
def test_a_folder_whose_name_can_be_none_among_checkpoints_is_refused(name):
    """In one line with what is allowed."""
    with pytest.raises(JobError, match="must be of at most 63 letters, digits, '-' and '_'"):
        run_of_folder(Path(name))


LOOKS = {
    "--resume auto": run_of_folder,
    "--resume RUN": earlier_run,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_folder_that_may_not_be_looked_at_is_one_line(monkeypatch, tmp_path, look):
    """Which of several there is."""

    def refuse(path, **_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for question in ("exists", "is_dir"):
        monkeypatch.setattr(Path, question, refuse)
    with pytest.raises(JobError, match=f"^{tmp_path}.* cannot be read: Permission denied$") as told:
        look(tmp_path / "run")
    assert not told.value.may_pass
