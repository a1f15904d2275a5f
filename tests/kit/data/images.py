"""Small images in folders of classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 8


def write_images(folder: Path, classes: Sequence[str], each: int) -> None:
    """Write images of 8 x 8 pixels, the same each time.

    Args:
        folder: Gets a folder for each class.
        classes: Their names.
        each: Images of each class.
    """
    draw = np.random.RandomState(0)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            pixels = draw.randint(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
