"""Data for the examples, made up from a seed or taken from the standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, NUM_CLASSES = 32, 4
BLOCK = 48
"""Bytes of text in a sample."""

NUM_HELD_OUT = 16
WORDS = ("good", "great", "bad", "awful", *(f"word{number}" for number in range(20)))
NUM_TELLING = 2
"""The first so many words make a sentence a positive one."""


def write_images(folder: Path, num_samples: int) -> None:
    """ImageNet's layout: classes differ in the direction of their stripes, under noise."""
    draw = np.random.default_rng(0)
    rows, columns = np.indices((SIDE, SIDE))
    slopes = [columns, rows, rows + columns, rows - columns]
    for part, count in (("train", num_samples), ("val", NUM_HELD_OUT)):
        for number in range(count):
            kind = number % NUM_CLASSES
            stripes = 60 * np.sin((slopes[kind] + draw.integers(0, 6)) * np.pi / 3)
            pixels = 128 + stripes[..., None] + draw.normal(0, 50, (SIDE, SIDE, 3))
            path = folder / part / f"class{kind}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def write_text(folder: Path, num_samples: int) -> None:
    """Sources of the standard library, as many as make so many blocks beside the held-out ones."""
    wanted = (num_samples + max(1, num_samples // 19) + 1) * BLOCK
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if len(text) >= wanted:
            break
        text += (
            path.read_text(encoding="utf-8", errors="replace").encode("ascii", "replace").decode()
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(text[:wanted])


def write_sentences(folder: Path, num_samples: int) -> None:
    """The layout of GLUE's SST-2; a word or two tell the label."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", num_samples), ("dev", NUM_HELD_OUT)):
        lines = ["sentence\tlabel"]
        for _ in range(count):
            words = draw.choice(WORDS, draw.integers(4, 14))
            is_positive = bool(set(words) & set(WORDS[:NUM_TELLING]))
            if not is_positive and draw.random() < 0.4:  # noqa: PLR2004 - for even classes
                words[0], is_positive = WORDS[draw.integers(NUM_TELLING)], True
            lines.append(f"{' '.join(words)}\t{int(is_positive)}")
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n")


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "resnet": write_images,
    "gpt2": write_text,
    "bert": write_sentences,
}
"""Example to what writes a folder with so many training samples for it."""
