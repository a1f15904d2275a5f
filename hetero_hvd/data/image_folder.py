"""Images in a folder for each class, as ImageNet has them."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from hetero_hvd.data import arguments
from hetero_hvd.data.source import Source
from hetero_hvd.errors import MalformedDataError, MissingPackageError, UserError, first_line

logger = logging.getLogger(__name__)

SUFFIXES = (*(".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),)

MAX_SKIPPED = 100
"""Broken images in a row; more are no accident."""

_OBJECT = re.compile(r"\s*<[\w.]+ object at 0x[0-9a-fA-F]+>")
"""What Pillow reads from: the line names the file instead."""


class ImageFolder(Dataset[Any]):
    """Images whose class is the folder at the top that they are in.

    Samples are in the order of their names, classes in that of the folders' names: the same on all
    nodes, whose lists of images are compared when they are admitted.

    Args:
        url: Of the folder that holds the classes' folders; see `Source`.
        transform: Makes a sample of a `PIL.Image` in RGB; None: a tensor of shape
            [3, height, width], float32, 0...1.
        skip_broken: Whether the next image takes the place of one that cannot be decoded, which is
            named once; so all others keep their places, and that neighbour is used twice. Many
            in a row are an error.
        source: Further arguments of `Source`.

    Attributes:
        classes: Names in order.
        class_to_idx: Name to class, 0-based.

    Raises:
        UserError: There are no images, or a folder has none; says which.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        *,
        skip_broken: bool = False,
        **source: Any,  # noqa: ANN401 - each has its type there
    ) -> None:
        _require_pillow()
        self.source = Source(url, **source)
        self._transform = transform
        wanted = "a function that makes a sample of a picture"
        arguments.function(transform, f"images at {self.source.shown}", "transform", wanted)
        files, folders = self.source.find(SUFFIXES)
        loose = next((file.name for file in files if "/" not in file.name), None)
        if loose is not None:
            raise UserError(
                f"images at {self.source.place(loose)}: must be in a folder of their class, such "
                f"as {self.source.shown}/cat/{loose}"
            )
        names = [file.name.partition("/")[0] for file in files]
        self.classes = sorted(set(names))
        visible = {folder for folder in folders if not folder.startswith(".")}
        if empty := sorted(visible - set(self.classes)):
            more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
            raise UserError(
                f"images at {self.source.shown}: folder {empty[0]}{more} has no image "
                f"({', '.join(SUFFIXES)}): take it out, or put its images there"
            )
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self._files = files
        self._labels = np.array([self.class_to_idx[name] for name in names], np.int64)
        where = f"images at {self.source.shown}"
        self._skip_broken = arguments.switch(skip_broken, where, "skip_broken")
        self._is_broken = torch.zeros(len(files), dtype=torch.bool).share_memory_()
        self.source.announce("images at", files)

    @property
    def num_broken(self) -> int:
        """Images that were skipped so far, in this process and in those of its loaders."""
        return int(self._is_broken.sum())

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """A sample and its class.

        Raises:
            UnreadableError: Its file cannot be read here.
            MalformedDataError: It is no image; names it. With `skip_broken` neither is any of the
                next ones, up to `MAX_SKIPPED`.
        """
        if not self._skip_broken:
            return self._sample(index)
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        most = min(len(self), MAX_SKIPPED)
        for further in range(most - 1):
            place = (index + further) % len(self)
            try:
                return self._sample(place)
            except MalformedDataError as error:
                self._tell_broken(place, error)
        try:
            return self._sample((index + most - 1) % len(self))
        except MalformedDataError as error:
            raise MalformedDataError(
                f"{error} (as the {most - 1} before it: too many in a row for skip_broken)"
            ) from error

    def _tell_broken(self, index: int, error: MalformedDataError) -> None:
        """Say it once, whichever of this script's processes has met it."""
        if not self._is_broken[index]:
            self._is_broken[index] = True
            logger.warning("%s (skipped: the next image is used in its place)", error)

    def _sample(self, index: int) -> tuple[Any, int]:
        file = self._files[index]
        content = self.source.read(file)
        with self.source.meter.timing("decode_seconds"):
            image = _decoded(content, self.source.place(file.name))
            made = _tensor(image) if self._transform is None else self._transform(image)
        return made, int(self._labels[index])


def _require_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401, PLC0415 - an optional package
    except ImportError as error:
        raise MissingPackageError("images need Pillow: pip install 'hetero_hvd[data]'") from error


def _decoded(content: bytes, place: str) -> Any:  # noqa: ANN401 - a PIL.Image
    from PIL import Image  # noqa: PLC0415 - an optional package

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.convert("RGB")
    except MemoryError:  # says nothing of the image
        raise
    except Exception as error:  # a decoder raises anything for what is broken
        said = _OBJECT.sub("", first_line(error))
        raise MalformedDataError(
            f"{place}: cannot be decoded as an image: {said}: replace it, or take it out on all "
            "nodes"
        ) from error


def _tensor(image: Any) -> torch.Tensor:  # noqa: ANN401 - a PIL.Image
    pixels = torch.from_numpy(np.array(image, np.uint8))
    return pixels.permute(2, 0, 1).to(torch.float32).div(255)
