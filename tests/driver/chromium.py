"""A page in headless Chromium, through its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from contextlib import contextmanager

from websockets.asyncio.client import connect

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--remote-debugging-port=0",
    "--window-size=1100,900",
)


def find():
    """The browser's program, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browser(profile):
    """A browser with a profile of its own; gives the address of its debugging socket."""
    process = subprocess.Popen(
        [find(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = iter(process.stderr.readline, "")
        yield next(line.split()[-1] for line in lines if line.startswith("DevTools listening on"))
    finally:
        process.terminate()
        process.communicate()


class Tab:
    """One tab."""

    def __init__(self, socket):
        self._socket = socket
        self._id = 0
        self._session = {}

    async def call(self, method, **parameters):
        """One command's result."""
        self._id += 1
        order = {"id": self._id, "method": method, "params": parameters, **self._session}
        await self._socket.send(json.dumps(order))
        while True:
            answer = json.loads(await self._socket.recv())
            if answer.get("id") == self._id:
                assert "error" not in answer, answer
                return answer["result"]

    async def open(self, url):
        """Go there."""
        target = await self.call("Target.createTarget", url=url)
        attached = await self.call("Target.attachToTarget", flatten=True, **target)
        self._session = {"sessionId": attached["sessionId"]}

    async def value(self, expression):
        """Of JavaScript; what it promises is awaited."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def text(self, selector):
        """What an element shows."""
        return await self.value(f"document.querySelector({selector!r})?.innerText ?? ''")

    async def until(self, expression):
        """The value of JavaScript once there is one; a test's own timeout ends the wait."""
        while not (found := await self.value(expression)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the page has no way to tell us
        return found

    async def screen(self, width, height, *, is_dark=False):
        """Be so wide and high, by day or by night."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def press(self, key, text=""):
        """A key; `text` is what it types."""
        code = {"Tab": 9, "Enter": 13}.get(key, 0)
        about = {"key": key, "windowsVirtualKeyCode": code}
        typed = {"text": text} if text else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **about, **typed)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def write(self, text):
        """Type where the focus is."""
        await self.call("Input.insertText", text=text)

    async def wait_for(self, selector, words):
        """The element's text once it holds the words; a test's own timeout ends the wait."""
        while words not in (text := await self.text(selector)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the page has no way to tell us
        return text

    async def screenshot(self, *, is_whole=False):
        """PNG, of what is seen or of the whole page."""
        picture = await self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=is_whole
        )
        return base64.b64decode(picture["data"])


async def look(profile, url, act):
    """Open a page and act on it, beside a server in the same loop."""
    with browser(profile) as address:
        async with connect(address, max_size=None, proxy=None) as socket:
            tab = Tab(socket)
            await tab.open(url)
            return await act(tab)


def visit(profile, url, act):
    """Open a page and act on it."""
    return asyncio.run(look(profile, url, act))
