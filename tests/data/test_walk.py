"""What is below a folder of this machine: files, and nothing that is none is waited for."""

import os
import socket

import pytest

from hetero_hvd.data import ImageFolder, Source
from hetero_hvd.errors import UserError
from tests.kit.data.images import write_images


def listens(path):
    """A socket, whose path may be no longer than some hundred letters."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))


ODD = {
    "a named pipe": os.mkfifo,
    "a socket": listens,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_named_and_not_read(tmp_path, monkeypatch, kind):
    """Among images, alone; beside them, by another name, it is nobody's business."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images", ("cat",), each=2)
    ODD[kind](tmp_path / "images" / "cat" / "x.sock")
    ODD[kind](tmp_path / "images" / "cat" / ".hidden.png")
    assert len(ImageFolder(tmp_path / "images")) == 2
    odd = tmp_path / "images" / "cat" / "2.png"
    ODD[kind](odd)
    for url in (tmp_path / "images", odd):
        with pytest.raises(UserError) as found:
            Source(url).find((".png",))
        assert str(found.value).startswith(f"data at {odd}: is {kind}: must be a file: take it out")
        assert "\n" not in str(found.value)


LINKS = {
    "to a file": (lambda folder: folder / "cat" / "0.png", 3),
    "to nothing": (lambda folder: folder / "gone", None),
    "to itself": (lambda folder: folder / "cat" / "x.png", None),
}


@pytest.mark.parametrize("case", LINKS)
def test_links_are_followed_as_far_as_they_lead(tmp_path, case):
    """One that leads nowhere is told with its name."""
    write_images(tmp_path, ("cat",), each=2)
    aim, expected = LINKS[case]
    (tmp_path / "cat" / "x.png").symlink_to(aim(tmp_path))
    if expected is not None:
        assert len(ImageFolder(tmp_path)) == expected
        return
    with pytest.raises(UserError, match=r"data at .*/cat/x\.png") as found:
        ImageFolder(tmp_path)
    assert "\n" not in str(found.value)


FOLDER_LINKS = {
    "itself": ({"cat/self": "."}, 4),
    "its parent": ({"cat/up": ".."}, 4),
    "the top": ({"cat/a/b": "../.."}, 4),
    "one another": ({"cat/x": "../dog", "dog/y": "../cat"}, 4 + 2 + 2),
    "a sibling": ({"dog/more": "../cat"}, 4 + 2),
    "a folder twice": ({"one": "cat", "two": "cat"}, 4 + 2 + 2),
}
"""Which links lead to which folder, and how many files are found of two cats and two dogs."""


@pytest.mark.parametrize("case", FOLDER_LINKS)
def test_a_link_back_is_no_more_data(tmp_path, case):
    """A folder is not found below itself; by another way it is there as often as it is linked."""
    write_images(tmp_path, ("cat", "dog"), each=2)
    links, expected = FOLDER_LINKS[case]
    for link, aim in links.items():
        path = tmp_path / link
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(aim, target_is_directory=True)
    assert len(Source(tmp_path).find((".png",)).files) == expected


def test_a_listing_says_how_many_files_are_of_another_kind(tmp_path):
    """Also of a place that is one file."""
    for name in ("a.txt", "b.TXT", ".c.log"):
        (tmp_path / name).write_text("x")
    with pytest.raises(UserError, match=r"no \.log file there among 3 files$"):
        Source(tmp_path).find((".log",))
    with pytest.raises(UserError, match=r"no \.log file there among 1 files$"):
        Source(tmp_path / "a.txt").find((".log",))
    assert [file.name for file in Source(tmp_path).find((".txt",)).files] == ["a.txt", "b.TXT"]
