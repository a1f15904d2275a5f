"""A page in the installed Chromium, headless, through Playwright."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-proxy-server")
SIZE = {"width": 1100, "height": 900}


def find():
    """The browser's program, or None: it or Playwright is not here."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Tab:
    """One tab.

    Attributes:
        page: Playwright's own.
        errors: Of its scripts, and of what its policy has forbidden.
    """

    def __init__(self, page):
        self.page = page
        self.errors = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._listen)

    def _listen(self, message):
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)

    async def call(self, method, **parameters):
        """The result of a command of Chromium's own protocol."""
        session = await self.page.context.new_cdp_session(self.page)
        return await session.send(method, parameters)

    async def value(self, expression):
        """Of JavaScript; what it promises is awaited."""
        return await self.page.evaluate(expression)

    async def text(self, selector):
        """What an element shows."""
        return await self.value(f"document.querySelector({selector!r})?.innerText ?? ''")

    async def until(self, expression):
        """The value of JavaScript once there is one; a test's own timeout ends the wait.

        Playwright's own wait evaluates text in the page, which our policy forbids.
        """
        while not (found := await self.value(expression)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the page has no way to tell us
        return found

    async def screen(self, width, height, *, is_dark=False):
        """Be so wide and high, by day or by night."""
        await self.page.set_viewport_size({"width": width, "height": height})
        await self.page.emulate_media(color_scheme="dark" if is_dark else "light")

    async def press(self, key):
        """A key."""
        await self.page.keyboard.press(key)

    async def write(self, text):
        """Type where the focus is."""
        await self.page.keyboard.insert_text(text)

    async def wait_for(self, selector, words):
        """The element's text once it holds the words; a test's own timeout ends the wait."""
        while words not in (text := await self.text(selector)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the page has no way to tell us
        return text


async def look(url, act):
    """Open a page and act on it, beside a server in the same loop."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 - where it is

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find(), args=[*ARGUMENTS])
        try:
            tab = Tab(await browser.new_page(viewport=SIZE))
            await tab.page.goto(url)
            return await act(tab)
        finally:
            await browser.close()


def visit(url, act):
    """Open a page and act on it."""
    return asyncio.run(look(url, act))
