"""The hub's page in a real browser: what it shows, on which screens, by which keys and orders."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import pytest

from benchmarks.workloads.recorded_week import NODE, SESSION, store_week
from hetero_hvd.run.web.pages import SHARED
from tests.driver import chromium
from tests.driver.looked_at import faults_of, on_screens
from tests.hub.page_rig import DRAWN, MARKUP, MINUTES, browse
from tests.hub.rig import HubProcess, free_port
from tests.hub.test_api import run

MAX_BYTES = 100_000
MAX_SECONDS = 3.0
"""For the plot of a week to open."""

MAX_TRIES = 3
"""As other tests may have the machine meanwhile."""

needs_browser = pytest.mark.skipif(chromium.find() is None, reason="needs chromium")


def fetch(url):
    """Body and headers."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - ours
        return answer.read(), answer.headers


def test_the_page_is_small_and_asks_nobody_else(tmp_path):
    """100 kB in all, from this server alone; nothing of it needs a token."""

    async def act(client):
        page, _ = await asyncio.to_thread(fetch, f"{client.url}/")
        names = re.findall(r'(?:src|href)="(.*?)"', page.decode())
        found = [await asyncio.to_thread(fetch, f"{client.url}/{name}") for name in ("", *names)]
        return names, found

    names, found = run(tmp_path, act)
    assert names == [
        "page.css", "uPlot.min.css", "plot.css", "hub.css",
        "uPlot.iife.min.js", "page.js", "plot.js", "hub.js",
    ]  # fmt: skip
    assert sum(len(body) for body, _ in found) < MAX_BYTES
    for body, headers in found:
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert {*re.findall(rb"https?://[^ \"']+", body)} <= {b"https://github.com/leeoniya/uPlot"}
    assert "MIT" in (SHARED / "uPlot.LICENSE").read_text()


NAMED_ROLES = {"button", "textbox", "combobox", "spinbutton", "link", "table", "image", "Date"}


@needs_browser
@on_screens("1440, light", "360, dark")
def test_it_fits_the_screen(tmp_path, screen):
    """Nothing beside it, nothing over another, nothing faint, everything with a name."""
    width, height, is_dark = screen

    async def act(tab, _client, _lab):
        await tab.screen(width, height, is_dark=is_dark)
        await tab.wait_for("#runs", "digits")
        await tab.wait_for("#fleet", "H100")
        await tab.until(DRAWN)
        found = await faults_of(tab)
        tree = await tab.call("Accessibility.getFullAXTree")
        roles = [
            (node["role"]["value"], node.get("name", {}).get("value"))
            for node in tree["nodes"]
            if not node["ignored"]
        ]
        dark = "getComputedStyle(document.documentElement).backgroundColor"
        return found, roles, await tab.value(dark)

    found, roles, back = browse(tmp_path, act, "#token={read}&session=over")
    assert found == {}
    assert {role for role, _ in roles} >= {
        "button",
        "textbox",
        "combobox",
        "table",
        "image",
        "cell",
    }
    assert [each for each in roles if each[0] in NAMED_ROLES and not each[1]] == []
    (image,) = [name for role, name in roles if role == "image"]
    assert re.match(r"use of GPU 0, GPU 1, .* to .*: from 10(\.\d+)? to (89\.\d+|90) %$", image)
    assert back == ("rgb(22, 24, 28)" if is_dark else "rgb(255, 255, 255)")


@needs_browser
def test_it_tells_what_there_is(tmp_path):
    """The fleet, sessions with their limits, runs with their pages; text is never markup."""

    async def act(tab, _client, _lab):
        await tab.wait_for("#runs", "digits")
        await tab.wait_for("#fleet", "H100")
        await tab.wait_for("#programs", "chiller")
        names = ("#fleet", "#programs", "#sessions", "#runs", "#health", ".silent")
        texts = {name: await tab.text(name) for name in names}
        links = await tab.value("[...document.querySelectorAll('a')].map((one) => one.href)")
        other = "linked({id: 'a run', url: 'javascript:alert(1)'})"
        return texts, links, await tab.value(f"[document.images.length, {other}]")

    texts, links, others = browse(tmp_path, act)
    assert texts["#health"] == "1 of 2 not heard: beta"
    assert re.match("beta\\s.*not heard, last sample", texts[".silent"], re.DOTALL)
    for words in ("CPU", "GPU 1 NVIDIA H100", MARKUP, "87 %", "60.0 of 80.0", "500", "0.5 s"):
        assert words in texts["#fleet"]
    assert re.match("chiller\\s+water\\s+23\\s+°C\\s", texts["#programs"])
    assert "chiller" not in texts["#fleet"]
    for words in ("kept for 7 d, at most 20 GB", "goes on", "ended, not written", "loses its"):
        assert words in texts["#sessions"]
    assert f"digits {MARKUP}" in texts["#runs"]
    assert "1200" in texts["#runs"]
    assert links == ["http://127.0.0.1:1/"]
    assert others == [0, "a run"]


@needs_browser
def test_a_plot_has_gaps_silence_and_what_happened_in_runs(tmp_path):
    """All on one axis. A run of which nobody knows more has no marks, and is no failure."""

    async def act(tab, _client, lab):
        await tab.wait_for("#runs", "digits")
        await tab.value("choose('over')")
        await tab.until(DRAWN)
        lines = await tab.value("plot.told.lines.map((one) => one.values)")
        axis = await tab.value("[plot.told.times, plot.told.shaded]")
        marks = await tab.text(".marks")
        gone = "{id: 'gone', kind: 'run', state: 'running', nodes: ['alpha']}"
        await tab.value(f"runs.push({gone}), drawPlot().then(() => 1)")
        return marks, lines, axis, lab, await tab.text(".marks"), await tab.text("#plot-status")

    marks, lines, (times, shaded), lab, later, status = browse(tmp_path, act)
    assert all(words in marks for words in (f"beta lost {MARKUP}", "alpha 36, gamma 12", "load"))
    assert (later, status) == (marks, "")
    (gap,) = [number for number, value in enumerate(lines[0]) if value is None]
    assert lines[1][gap] is None
    assert (round(times[gap - 1] - lab.began), round(times[gap + 1] - lab.began)) == (600, 1201)
    assert [[round(at - lab.began) for at in each] for each in shaded] == [[600, 1200]]


async def focus(tab, selector):
    """Go there by the key Tab."""
    for _ in range(80):
        if await tab.value(f"document.activeElement.matches({selector!r})"):
            return
        await tab.press("Tab")
    raise AssertionError(f"no way to {selector} by Tab")


@needs_browser
def test_orders_are_given_by_keys_and_need_the_token(tmp_path):
    """Start, stop, cut and write, each told; the token stays in its field."""

    async def act(tab, client, _lab):
        told = []

        async def push(selector, words):
            await focus(tab, selector)
            await tab.press("Enter")
            told.append(await tab.wait_for("#order-status", words))

        await tab.wait_for("#runs", "digits")
        for name, value in (("name", "mine"), ("days", "7"), ("gigabytes", "1.5")):
            await focus(tab, f"#start [name={name}]")
            await tab.write(value)
        await push("#start button", "token of the role 'operate'")
        await focus(tab, "#token")
        await tab.write("o" * 20)
        await push("#start button", "started mine")
        await push("#start button", "there is one of that name already")
        await tab.wait_for("#sessions", "mine")
        await push("[aria-label='Stop mine']", "stopped mine")
        await push("[aria-label='Write over']", "wrote over")
        await focus(tab, "[aria-label='Plot night']")
        await tab.press("Enter")
        await tab.until(f"{DRAWN}?.startsWith('night alpha use_ratio')")
        await focus(tab, "#cut-plot")
        await tab.press("Enter")
        await focus(tab, "#cut [name=name]")
        await tab.write("part")
        await push("#cut button:not([type])", "cut part")
        kept = await tab.value(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])"
        )
        _, sessions, _ = await client.ask("/v1/sessions", role="read")
        return told, kept, {each["name"]: each for each in sessions["items"]}

    told, kept, sessions = browse(tmp_path, act)
    assert len(told) == 6
    assert "oooo" not in kept
    assert {name for name, each in sessions.items() if each["folder"]} == {"mine", "over", "part"}
    assert (sessions["mine"]["keep_seconds"], sessions["mine"]["keep_bytes"]) == (604800, 1.5e9)
    assert sessions["part"]["keep_seconds"] is None
    assert sessions["part"]["nodes"] == ["alpha"]
    span = sessions["part"]["until_unix_seconds"] - sessions["part"]["from_unix_seconds"]
    assert round(span) in range(60 * MINUTES, 61 * MINUTES)


async def choose(tab, what, value):
    """Plot another figure or node; gives the title."""
    found = f"document.getElementById('plot-{what}')"
    await tab.value(f"{found}.value = {value!r}; {found}.onchange()")
    await tab.until(f"{DRAWN}.includes({value!r})")
    return await tab.text("#plot figcaption")


@needs_browser
def test_a_closer_look_shows_single_samples(tmp_path):
    """By the buttons, by dragging, and back to all of it; another figure and another node."""

    async def act(tab, _client, _lab):
        await tab.until(DRAWN)
        span = "plot.told.to - plot.told.from"
        spans = [round(await tab.value(span))]

        async def push(words):
            before = await tab.value(DRAWN)
            await tab.value(
                "[...document.querySelectorAll('.tools button')]"
                f".find((one) => one.innerText === '{words}').click()"
            )
            await tab.until(f"{DRAWN} !== {before!r}")
            spans.append(round(await tab.value(span)))

        for words in ("Closer", "Closer", "Later", "Earlier", "Wider", "All"):
            await push(words)
        await tab.value("document.getElementById('plot').scrollIntoView()")
        box = await tab.value(
            "Object.values(document.querySelector('.u-over').getBoundingClientRect().toJSON())"
        )
        before = await tab.value(DRAWN)
        for kind, part in (("mousePressed", 0.1), ("mouseMoved", 0.15), ("mouseReleased", 0.15)):
            await tab.call(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1,
                x=box[0] + part * box[2], y=box[1] + box[3] / 2,
            )  # fmt: skip
        await tab.until(f"{DRAWN} !== {before!r}")
        steps = await tab.value("plot.told.times.map((at, i, all) => at - (all[i - 1] ?? at))")
        titles = [
            await choose(tab, *each) for each in (("figure", "power_watts"), ("node", "chiller"))
        ]
        groups = "[...document.querySelectorAll('#plot-node optgroup')]"
        named = f"{groups}.map((one) => one.label + ': ' + one.innerText.trim())"
        return spans, steps, titles, await tab.value(named)

    spans, steps, titles, groups = browse(tmp_path, act, "#token={read}&session=night")
    assert spans[0] in range(60 * MINUTES, 61 * MINUTES)
    assert [round(span / spans[0], 2) for span in spans] == [1, 0.5, 0.25, 0.25, 0.25, 0.5, 1]
    assert {round(step, 3) for step in steps[1:]} == {1}
    assert titles == ["power, W", "water, told by the program chiller, °C"]
    assert groups == ["Nodes: alphabeta", "Other programs: chiller"]


@needs_browser
def test_a_session_that_goes_on_is_followed(tmp_path):
    """Its plot grows; whoever has hidden a line and has the focus there keeps both."""

    async def act(tab, client, lab):
        await tab.until(DRAWN)
        await tab.wait_for(".marks", "beta lost")  # though runs may be known later
        last = await tab.value("plot.told.times.at(-1)")
        await focus(tab, ".legend button:last-child")
        await tab.press("Enter")
        client.store.commit([lab.part(60 * MINUTES + 1, 1)])
        await tab.until(f"plot.told.times.at(-1) > {last}")
        shown = "[...document.querySelectorAll('.legend button')].map((one) => one.ariaPressed)"
        return await tab.value("document.activeElement.innerText"), await tab.value(shown)

    assert browse(tmp_path, act, "#token={read}&session=night") == ("GPU 1", ["true", "false"])


@needs_browser
@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_the_plot_of_a_week_opens_in_three_seconds(tmp_path):
    """Of a node with 8 GPUs at 2 Hz, from the browser's first request to the drawn lines."""
    store_week(tmp_path / "hub", 8)
    hub = HubProcess(tmp_path)
    port = free_port()
    url = f"http://127.0.0.1:{port}/#session={SESSION}"
    hub.start("--http-port", str(port))

    async def act(tab):
        tries = []
        while not tries or (min(tries) >= MAX_SECONDS and len(tries) < MAX_TRIES):
            await tab.page.goto("about:blank")
            await tab.page.goto(url)
            await tab.until(f"document.readyState === 'complete' && document.title && {DRAWN}")
            tries.append(await tab.value("performance.now() / 1000"))
        return tries, await tab.value(DRAWN), await tab.value("plot.told.lines.length")

    async def visit():
        await hub.order("status")
        return await chromium.look("about:blank", act)

    try:
        tries, drawn, num_lines = asyncio.run(visit())
    finally:
        hub.kill()
    print(f"the plot of a week opens in {1000 * min(tries):.0f} ms")  # noqa: T201 - for who asks
    assert drawn.startswith(f"{SESSION} {NODE} use_ratio")
    assert num_lines == 8
    assert min(tries) < MAX_SECONDS
