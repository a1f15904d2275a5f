"""Folders of images: the same samples from any place, and one line for what is wrong."""

import logging
import shutil

import pytest
import torch
from torch.utils.data import DataLoader

from hetero_hvd.data import ImageFolder, image_folder
from hetero_hvd.data.listing import opened_files
from hetero_hvd.errors import MalformedDataError, UserError
from tests.data.source_rigs import RIGS
from tests.kit.data.images import SIDE, write_images

CLASSES = ("dog", "cat", "ant")


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of images."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, CLASSES, each=3)
    return folder


@pytest.mark.parametrize("name", RIGS)
def test_it_gives_the_same_samples_from_any_place(rigs, images, name):
    """Classes in the order of their names, samples in that of theirs; also from the cache."""
    rig = rigs(name)
    contents = {f"{p.parent.name}/{p.name}": p.read_bytes() for p in images.rglob("*.png")}
    rig.fill({f"images/{name}": content for name, content in contents.items()})
    arguments = rig.arguments()
    found = ImageFolder(f"{arguments.pop('url')}/images", **arguments)
    near = ImageFolder(images)
    assert found.classes == ["ant", "cat", "dog"]
    assert found.class_to_idx == {"ant": 0, "cat": 1, "dog": 2}
    assert [label for _, label in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for _ in range(2):
        loader = DataLoader(found, batch_size=9, num_workers=1, multiprocessing_context="fork")
        ((pixels, labels),) = loader
        assert pixels.shape == (9, 3, SIDE, SIDE)
        assert pixels.dtype == torch.float32
        assert torch.equal(pixels, torch.stack([near[index][0] for index in range(9)]))
        assert labels.tolist() == [label for _, label in near]
    one, other = opened_files()[-2:]
    assert one.digest == other.digest


def test_what_is_kept_on_the_node_is_not_read_again(rigs, images):
    """The second time no content is asked for; without the cache each is."""
    rig = rigs("http")
    rig.fill({f"kept/cat/{n}.png": (images / "cat" / f"{n}.png").read_bytes() for n in range(3)})
    for cache_bytes, expected in ((2**20, 3), (2**20, 0), (0, 3)):
        found = ImageFolder(f"{rig.url}/kept", cache_bytes=cache_bytes)
        rig.proxy.seen.clear()
        assert len([label for _, label in found]) == 3
        assert len(rig.proxy.seen) == expected


def test_a_transform_gets_the_picture(images):
    """In RGB, whatever its file has."""
    found = ImageFolder(images, transform=lambda image: (image.mode, image.size))
    assert found[0] == (("RGB", (SIDE, SIDE)), 0)


SPOILS = {
    "no class": (
        lambda folder: shutil.copy(folder / "cat/0.png", folder / "0.png"),
        "images at {folder}/0.png: must be in a folder of their class",
    ),
    "a class without images": (
        lambda folder: (folder / "bee").mkdir(),
        "images at {folder}: folder bee has no image",
    ),
    "a class with other files": (
        lambda folder: [p.rename(p.with_suffix(".txt")) for p in (folder / "cat").iterdir()],
        "images at {folder}: folder cat has no image",
    ),
    "nothing": (
        lambda folder: [shutil.rmtree(path) for path in folder.iterdir()],
        "data at {folder}: no .bmp, .gif",
    ),
    "no folder": (shutil.rmtree, "data at {folder}: not found: "),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILS.values(), ids=SPOILS.keys())
def test_what_is_wrong_is_one_line(tmp_path, spoil, words):
    """When the folder is opened."""
    write_images(tmp_path / "images", CLASSES, each=1)
    spoil(tmp_path / "images")
    with pytest.raises(UserError) as found:
        ImageFolder(tmp_path / "images")
    assert str(found.value).startswith(words.format(folder=tmp_path / "images"))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_broken_image_is_named(tmp_path, processes):
    """Also out of a loader process: one line without a traceback."""
    write_images(tmp_path, ("cat",), each=1)
    (tmp_path / "cat" / "1.png").write_bytes((tmp_path / "cat" / "0.png").read_bytes()[:60])
    loader = DataLoader(
        ImageFolder(tmp_path),
        num_workers=processes,
        multiprocessing_context="fork" if processes else None,
    )
    with pytest.raises(MalformedDataError) as found:
        list(loader)
    assert str(found.value).startswith(f"{tmp_path}/cat/1.png: cannot be decoded as an image: ")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM"])
def test_the_line_about_a_broken_image_is_about_the_file(tmp_path, content):
    """Of whatever kind: the same each time, without objects and addresses of this process."""
    write_images(tmp_path, ("cat",), each=1)
    (tmp_path / "cat" / "1.png").write_bytes(content)
    said = set()
    for _ in range(2):
        with pytest.raises(MalformedDataError, match="cannot be decoded as an image: ") as found:
            ImageFolder(tmp_path)[1]
        said.add(str(found.value))
    assert len(said) == 1
    assert " object at " not in said.pop()


@pytest.fixture
def told(tmp_path):
    """What is logged, by a loader's processes, too."""
    handler = logging.FileHandler(tmp_path / "told")
    logger = logging.getLogger("hetero_hvd.data.image_folder")
    logger.addHandler(handler)
    yield tmp_path / "told"
    logger.removeHandler(handler)
    handler.close()


BROKEN = {"empty": b"", "cut off": None, "text": b"no picture", "zeros": bytes(200)}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_images_are_skipped_and_named_once(tmp_path, images, told, kind, num_workers):
    """Also the last one, whose neighbour is the first; all others keep their places."""
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    broken = [folder / "ant" / "1.png", folder / "cat" / "0.png", folder / "dog" / "2.png"]
    for path in broken:
        content = BROKEN[kind]
        path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    found = ImageFolder(folder, skip_broken=True)
    whole = ImageFolder(images)
    expected = [whole[place] for place in (0, 2, 2, 4, 4, 5, 6, 7, 0)]
    context = "fork" if num_workers else None
    for _ in range(2):
        loader = DataLoader(found, 3, num_workers=num_workers, multiprocessing_context=context)
        pixels, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
        assert labels.tolist() == [label for _, label in expected]
        assert torch.equal(pixels, torch.stack([image for image, _ in expected]))
    assert found.num_broken == 3
    lines = told.read_text()
    for path in broken:
        assert lines.count(f"{path.parent.name}/{path.name}: cannot be decoded") == 1
    assert torch.equal(found[-1][0], whole[0][0])
    with pytest.raises(IndexError):
        found[9]


def test_many_broken_images_in_a_row_are_an_error(tmp_path, monkeypatch):
    """A folder of nothing else is not read to its end for each sample."""
    (tmp_path / "cat").mkdir()
    for number in range(10):
        (tmp_path / "cat" / f"{number}.png").write_bytes(b"no picture")
    found = ImageFolder(tmp_path, skip_broken=True)
    monkeypatch.setattr(image_folder, "MAX_SKIPPED", 4)
    with pytest.raises(MalformedDataError, match=r"cat/5.png: .*\(as the 3 before it: too many"):
        found[2]
    assert found.num_broken == 3


@pytest.mark.parametrize("skip_broken", [True, False])
def test_a_lack_of_memory_is_no_broken_image(images, monkeypatch, skip_broken):
    """The image is as good as ever."""

    def fail(*_):
        raise MemoryError

    found = ImageFolder(images, skip_broken=skip_broken)
    monkeypatch.setattr("PIL.Image.Image.convert", fail)
    with pytest.raises(MemoryError):
        found[0]
    assert not found.num_broken


def test_where_all_are_broken_nothing_is_skipped(tmp_path):
    """One line that names an image."""
    for name in ("a", "b"):
        (tmp_path / "cat").mkdir(exist_ok=True)
        (tmp_path / "cat" / f"{name}.png").write_bytes(b"no picture")
    found = ImageFolder(tmp_path, skip_broken=True)
    for index in (0, 1, -1):
        with pytest.raises(MalformedDataError, match=r"cat/[ab].png: cannot be decoded"):
            found[index]
    with pytest.raises(UserError, match="skip_broken: 'yes': must be True or False"):
        ImageFolder(tmp_path, skip_broken="yes")
