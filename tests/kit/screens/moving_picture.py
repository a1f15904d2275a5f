"""The moving pictures of the README: a real run as its terminal and its live page show it.

`scripts/screenshots` makes them: the demo is started on a terminal, its page is opened in Chromium
as wide as on a desk and as on a phone, and what both show is kept again and again until it ends.
"""

from __future__ import annotations

import asyncio
import base64
import html
import io
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.checkout import CHECKOUT, variables
from tests.kit.screens.terminal import OnTerminal

WORDS = ("run", "-f", "nodes.yaml", "--baseline-steps", "40", "--color", "always")
SCRIPT = "docs/examples/digits.py"
COLUMNS, LINES = 100, 27
PAGE, PHONE, STAGE = (860, 980), (390, 760), (1440, 720)
"""Width and height of windows."""
SHOWN, SHOWN_ON_PHONE = (1200, 600), (585, 1140)
"""Pixels of the pictures."""
MAX_BYTES = 600_000
NUM_FRAMES = 16
FRAME_MILLISECONDS, LAST_MILLISECONDS = 600, 3500
QUALITIES = (60, 45, 30)
COLOURS = {
    "default": "#d5d9e0", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "yellow": "#e3b341", "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea",
}  # fmt: skip
"""pyte's names, as they are seen on a dark terminal."""


class Moment(NamedTuple):
    """What was to be seen at one time.

    Attributes:
        terminal: As HTML.
        page: A PNG, as on a desk.
        phone: A PNG.
    """

    terminal: str
    page: bytes
    phone: bytes


def make(folder: Path) -> None:
    """Write both pictures.

    Args:
        folder: Of `demo.webp` and `demo-phone.webp`.

    Raises:
        RuntimeError: The run has failed, or a picture is too large.
    """
    wide, narrow = asyncio.run(_filmed())
    _write(folder / "demo.webp", wide, SHOWN)
    _write(folder / "demo-phone.webp", narrow, SHOWN_ON_PHONE)


async def _filmed() -> tuple[list[bytes], list[bytes]]:
    from playwright.async_api import async_playwright  # noqa: PLC0415 - for this alone

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        moments = _chosen(await _moments(browser))
        stage = await _window(browser, STAGE)
        wide = []
        for moment in moments:
            await stage.set_content(_stage(moment))
            wide.append(await stage.screenshot())
        await browser.close()
    return wide, [moment.phone for moment in moments]


async def _window(browser: Any, size: tuple[int, int], *, pixels: int = 1) -> Any:  # noqa: ANN401 - Playwright's
    """An empty page of that width and height; so many pixels for each of its own."""
    viewport = {"width": size[0], "height": size[1]}
    return await browser.new_page(viewport=viewport, device_scale_factor=pixels)


async def _moments(browser: Any) -> list[Moment]:  # noqa: ANN401 - Playwright's
    """All of a run, from its first step to its end."""
    moments: list[Moment] = []
    with (
        tempfile.TemporaryDirectory() as output,
        OnTerminal(
            [
                sys.executable,
                "-m",
                "hetero_hvd",
                *WORDS,
                "--output",
                f"{output}/demo",
                "--",
                SCRIPT,
            ],
            columns=COLUMNS,
            lines=LINES,
            environment=variables(
                TERM="xterm-256color",
                HETERO_HVD_LEASES_FOLDER=output,  # other runs on this machine may have such nodes
            ),
            folder=CHECKOUT,
        ) as terminal,
    ):
        terminal.until(lambda seen: "train together" in seen.text)
        url = re.search(r"page: (\S+)", terminal.text)[1]  # type: ignore[index] # it was printed
        tabs = [await _window(browser, size, pixels=2) for size in (PAGE, PHONE)]
        for tab in tabs:
            await tab.goto(url)
        while terminal.is_there(0.4):
            await asyncio.sleep(0)
            shown = [await tab.screenshot() for tab in tabs]
            texts = [await tab.inner_text("body") for tab in tabs]
            if any("not connected" in text or "The run has ended" in text for text in texts):
                break  # the run has ended, and its page with it
            moments.append(Moment(_on_terminal(terminal), *shown))
        terminal.wait()
        if terminal.process.wait():
            raise RuntimeError(f"the run has failed:\n{terminal.text}")
        moments.append(moments[-1]._replace(terminal=_on_terminal(terminal)))
    return moments


def _chosen(moments: list[Moment]) -> list[Moment]:
    """So many, evenly over the run; the last one is the end."""
    last = len(moments) - 1
    numbers = sorted({round(last * k / (NUM_FRAMES - 1)) for k in range(NUM_FRAMES)})
    return [moments[number] for number in numbers]


def _on_terminal(terminal: OnTerminal) -> str:
    """What is shown, in its colours."""
    lines = []
    for line in terminal.cells:
        text = ""
        for letter, colour, is_bold in line:
            shade = COLOURS.get(colour, COLOURS["default"])
            weight = ";font-weight:600" if is_bold else ""
            text += f'<span style="color:{shade}{weight}">{html.escape(letter)}</span>'
        lines.append(text)
    return "\n".join(lines)


def _stage(moment: Moment) -> str:
    page = base64.b64encode(moment.page).decode()
    return f"""<style>
body {{ margin: 0; height: 100vh; display: grid; grid-template-columns: 1fr 604px; gap: 18px;
  padding: 16px; box-sizing: border-box; background: linear-gradient(135deg, #24324a, #3d5a80); }}
div {{ border-radius: 9px; overflow: hidden; box-shadow: 0 6px 24px #0007; }}
#terminal {{ background: #14181f; }}
#terminal::before, #page::before {{ content: "\\25cf \\25cf \\25cf"; display: block;
  padding: 5px 12px; color: #8a94a6; font: 12px sans-serif; background: #2b313c;
  letter-spacing: 2px; }}
pre {{ margin: 0; padding: 12px 14px; font: 12.6px/1.78 "DejaVu Sans Mono", monospace; }}
#page {{ background: #fff; }}
img {{ width: 100%; display: block; }}
</style><div id=terminal><pre>{moment.terminal}</pre></div>
<div id=page><img src="data:image/png;base64,{page}"></div>"""


def _write(path: Path, pictures: list[bytes], size: tuple[int, int]) -> None:
    """As one that moves, as good as its size allows."""
    from PIL import Image  # noqa: PLC0415 - for this alone

    read = (Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures)
    frames = [picture.resize(size, Image.Resampling.LANCZOS) for picture in read]
    durations = [FRAME_MILLISECONDS] * (len(frames) - 1) + [LAST_MILLISECONDS]
    for quality in QUALITIES:
        frames[0].save(
            path, save_all=True, append_images=frames[1:], duration=durations, loop=0,
            quality=quality, method=4,
        )  # fmt: skip
        if path.stat().st_size <= MAX_BYTES:
            return
    raise RuntimeError(f"{path}: {path.stat().st_size} bytes are more than {MAX_BYTES}")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
