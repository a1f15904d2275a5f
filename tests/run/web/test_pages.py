"""The pages of a run in a real browser: on which screens, by which keys, with which names."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from pathlib import Path

import pytest

from hetero_hvd.config.job import MAX_TRACE_STEPS
from hetero_hvd.messages import RunEnded
from hetero_hvd.run.web.pages import SHARED
from tests.driver import chromium
from tests.driver.looked_at import faults_of, on_screens
from tests.kit.screens.shown_run import NUM_EXCHANGES, ShownRun, history, write_run

MAX_BYTES = 100_000
"""Of a page with all its files, as they are."""

PHONE = 360
PICTURES = {
    ("live", 1440, False): "live-view.png",
    ("live", PHONE, True): "live-view-phone.png",
    ("report", 1440, True): "report.png",
}
EVIL = "/*DATA*//*SCRIPT*/</script><img src=x onerror=document.title='broken'>{{7*7}}' \" & \\"
EVIL += "x" * 300  # wider than the window
EVIL_NODES = ("<b>a</b>", "__proto__", "constructor")
OPERATE = "o" * 20
PLOT = "[...board.plots.values()][0]"
LOSS = "[...board.plots.values()].find((plot) => plot.told?.title === 'Loss')"
DRAWN = "document.querySelectorAll('#plots canvas').length >= 9"

needs_browser = pytest.mark.skipif(chromium.find() is None, reason="needs chromium, playwright")


@pytest.fixture
def shown(tmp_path):
    """Serves pages of runs; gives the run."""
    runs = []

    def start(*, is_operated=False, **about):
        settings = {}
        if is_operated:
            file = tmp_path / "operate"
            file.write_text(OPERATE)
            file.chmod(0o600)
            settings["http_operate_token_file"] = str(file)
        folder = tmp_path / "runs" / f"run-{len(runs)}"
        write_run(folder, list(history(time.time(), num_exchanges=20)))
        runs.append(ShownRun(folder, list(history(time.time(), **about)), **settings))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def next_exchange():
    """What happens after a run's history so far."""
    return list(history(time.time(), num_exchanges=NUM_EXCHANGES + 1))[-5:]


def test_the_page_is_small_and_asks_nobody_else(shown):
    """100 kB in all, from this server alone."""
    url = f"{shown().web.url}/"

    def fetch(name):
        with urllib.request.urlopen(url + name, timeout=10) as answer:  # noqa: S310 - ours
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
            return answer.read().decode()

    assert f'max="{MAX_TRACE_STEPS}"' in fetch("")
    names = re.findall(r'(?:src|href)="(.*?)"', fetch(""))
    found = [fetch(name) for name in ("", *names)]
    assert {"uPlot.iife.min.js", "plot.js", "board.js", "live.js"} <= {*names}
    assert sum(len(text.encode()) for text in found) < MAX_BYTES
    own = {"https://github.com/leeoniya/uPlot", "http://www.w3.org/2000/svg"}
    assert {*re.findall(r"https?://[^ \"']+", "".join(found))} <= own
    assert "MIT" in (SHARED / "uPlot.LICENSE").read_text()


@needs_browser
@on_screens("1440, light")
def test_pages_fit_the_screen(shown, tmp_path, request, screen):
    """Live page and report: nothing beside or over another, and no fault for axe-core.

    `scripts/screenshots` keeps what it has looked at: the pictures of the docs.
    """
    width, height, is_dark = screen
    run = shown()
    pictures = request.config.getoption("--pictures")
    report = write_run(tmp_path / "over", list(history(time.time(), is_over=True)))

    async def act(tab):
        await tab.screen(width, height, is_dark=is_dark)
        found = {}
        for name, url in (("live", run.web.url), ("report", report.as_uri())):
            await tab.page.goto(url)
            await tab.until(DRAWN)
            if name == "live":
                run.take(next_exchange())
                await tab.wait_for("#progress-facts", "2409 of 4000")
            if pictures and (file := PICTURES.get((name, width, is_dark))):
                is_whole = width > PHONE
                await tab.page.screenshot(path=Path(pictures) / file, full_page=is_whole)
            found[name] = await faults_of(tab)
        back = await tab.value("getComputedStyle(document.documentElement).backgroundColor")
        return found, back

    found, back = chromium.visit("about:blank", act)
    assert found == {"live": {}, "report": {}}
    assert back == ("rgb(22, 24, 28)" if is_dark else "rgb(255, 255, 255)")


@needs_browser
def test_no_name_becomes_markup_or_breaks_a_page(shown, tmp_path):
    """Of a run, a metric, a node; the policy forbids nothing that the pages do."""
    about = {"nodes": EVIL_NODES, "name": EVIL, "metric": EVIL}
    run = shown(**about)
    report = write_run(tmp_path / "over", list(history(time.time(), is_over=True, **about)))

    async def act(tab):
        told = []
        for url in (run.web.url, report.as_uri()):
            await tab.page.goto(url)
            await tab.until(DRAWN)
            text = await tab.text("body")
            named = [EVIL in text, *(node in text for node in EVIL_NODES)]
            found = "[document.images.length, document.querySelectorAll('li > b > b, td b').length]"
            told.append((named, await tab.value(found), await tab.value("document.title")))
            wide = await tab.value("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0
        return told, tab.errors

    told, errors = chromium.visit("about:blank", act)
    assert errors == []
    for named, markup, title in told:
        assert named == [True] * 4
        assert markup == [0, 0]
        assert title.startswith(EVIL)


@needs_browser
def test_the_page_follows_the_run_and_tells_a_stall(shown):
    """Progress, title, plots, the verdict; who has the focus keeps it; a stall is seen and said."""
    run = shown()

    async def act(tab):
        await tab.page.goto(run.web.url)
        await tab.until(DRAWN)
        facts = await tab.wait_for("#progress-facts", "last step")
        title = await tab.value("document.title")
        assert "bound by compute" in await tab.wait_for("#verdict", "bound by")
        assert "reduce" not in await tab.text("#news")
        await tab.value("document.querySelector('[aria-label=\"Drain gamma:0\"]').focus()")
        run.take(next_exchange())
        await tab.wait_for("#progress-facts", "2409 of 4000")
        focused = await tab.value("document.activeElement.ariaLabel")
        # The driver says nothing of steps any more: the page's own clock goes on.
        await tab.value("heardAt -= 60000")
        await tab.wait_for("#stall", "No step for 1 min")
        return facts, title, focused, await tab.text("#news"), await tab.value("document.title")

    facts, title, focused, news, stalled = chromium.visit("about:blank", act)
    assert re.search(r"2399 of 4000.*60 %.*min.*last step\s+[\d.]+ s ago", facts, re.DOTALL)
    assert title == "digits 60 %: training"
    assert focused == "Drain gamma:0"
    assert (news, stalled) == ("The run takes no steps any more.", "digits 60 %: stalled")


HOW_FAR = "stopped at step 2400 of 4000: "
ENDS = [
    pytest.param("ended by an order over HTTP", 143, id="stopped"),
    pytest.param("alpha:0: the script is wrong", 1, id="failed", marks=pytest.mark.matrix),
]


@needs_browser
@pytest.mark.parametrize(("reason", "code"), ENDS)
def test_the_page_of_a_run_that_has_ended_says_how(shown, reason, code):
    """What was done stays as it was, and a server that is gone is no fault then."""
    run = shown()

    async def act(tab):
        await tab.page.goto(run.web.url)
        await tab.until(DRAWN)
        run.take([(time.time(), RunEnded(exit_code=code, reason=reason))])
        await asyncio.to_thread(run.close)
        said = f"The run has ended: {HOW_FAR}{reason}"
        await tab.wait_for("#connection", said)
        await tab.until("board.draw().then(() => true)")  # it asks, and nobody answers
        facts = await tab.text("#progress-facts")
        assert await tab.text("#plots-status") == ""
        assert await tab.text("#news") == said
        assert await tab.value("document.querySelectorAll('.bad:not([hidden])').length") == 0
        assert await tab.value("document.querySelectorAll('#plots canvas').length >= 9")
        return facts, await tab.value("document.title")

    facts, title = chromium.visit("about:blank", act)
    assert re.search(rf"{HOW_FAR}{reason}.*2399 of 4000.*60 %", facts, re.DOTALL)
    assert "left" not in facts
    assert title == "digits 60 %: ended"


@needs_browser
@pytest.mark.matrix
def test_a_server_that_is_gone_is_told_in_words(shown):
    """A driver that was killed has said nothing of an end: it may come back."""
    run = shown()

    async def act(tab):
        await tab.page.goto(run.web.url)
        await tab.until(DRAWN)
        await asyncio.to_thread(run.close)
        await tab.wait_for("#connection", "not connected (no answer); trying again")
        await tab.until("board.draw().then(() => true)")
        return await tab.text("#plots-status")

    assert chromium.visit("about:blank", act) == "no answer"


@needs_browser
def test_orders_need_the_token_and_a_yes(shown):
    """Drain, trace and stop by keys; what is refused is told; the token is kept nowhere."""
    run = shown(is_operated=True)

    async def act(tab):
        asked = []

        async def answer(dialog):
            asked.append(dialog.message)
            await (dialog.dismiss() if len(asked) == 1 else dialog.accept())

        tab.page.on("dialog", answer)
        await tab.page.goto(run.web.url)
        await tab.until("document.querySelector('[aria-label=\"Drain beta:0\"]') !== null")
        drain = tab.page.get_by_label("Drain beta:0")
        await drain.press("Enter")  # and no
        await drain.press("Enter")
        await tab.wait_for("#order-status", "needs the token of the role 'operate'")
        beside = "document.querySelector('#order-status').previousElementSibling.ariaLabel"
        assert await tab.value(beside) == "Drain beta:0"
        said = "[...document.querySelectorAll('[role=status], [role=alert], [aria-live]')]"
        said += ".filter((one) => one.textContent.includes('needs the token')).length"
        assert await tab.value(said) == 1
        assert await tab.value("document.activeElement.id") == "token"
        await tab.write("x" * 20)
        await tab.page.locator("#trace").press("Enter")
        await tab.wait_for("#order-status", "the token is not that of the role 'operate' here")
        await tab.value("document.querySelector('#token').value = ''")
        await tab.write(OPERATE)
        trace, stop = tab.page.locator("#trace"), tab.page.locator("#stop")
        for press, words in ((drain, "drain"), (trace, "trace"), (stop, "stop")):
            await press.press("Enter")
            await tab.wait_for("#order-status", f"{words} is under way")
        kept = await tab.value(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])"
        )
        return asked, kept

    asked, kept = chromium.visit("about:blank", act)
    assert run.orders[0] == ("drain", "beta:0")
    assert (run.orders[1][0], run.orders[1][1]["steps"], run.orders[2]) == ("trace", 5, ("stop",))
    assert [words.partition("?")[0] for words in asked[2:]] == [
        "Let beta:0 go",
        "Stop the whole run",
    ]
    assert "oooo" not in kept


@needs_browser
def test_a_plot_is_looked_at_closer(shown):
    """By buttons, range and axis; the server thins it anew."""
    run = shown()
    spans = []

    async def act(tab):
        page = tab.page
        await page.goto(run.web.url)
        await tab.until(DRAWN)
        range_ = f"[{PLOT}.told.from, {PLOT}.told.to, {PLOT}.told.isStep]"
        choice = lambda name: page.get_by_role("combobox", name=name)  # noqa: E731 - short
        button = lambda name: page.get_by_role("button", name=name, exact=True)  # noqa: E731

        async def changed(act):
            before = await tab.value(f"JSON.stringify({range_})")
            await act
            await tab.until(f"JSON.stringify({range_}) !== {before!r}")
            await spanned()

        async def spanned():
            first, last, _ = await tab.value(range_)
            spans.append(round(last - first))

        await spanned()
        for words in ("Closer", "Later", "All"):
            await changed(button(words).click())
        await changed(choice("Show").select_option("the last 5 minutes"))
        assert await tab.value("board.axis.value") == "time"
        await changed(choice("Over").select_option("steps"))
        for words, most in (("Earlier", 4), ("Wider", 60), ("Closer", 90)):  # as far as it goes
            for _ in range(most):
                await button(words).click()
            await asyncio.sleep(0.5)  # until what was asked last has come
            first, last, _ = await tab.value(range_)
            assert 0 <= first < last
            assert await tab.text("#plots-status") == ""

    chromium.visit("about:blank", act)
    assert [round(span / spans[0], 2) for span in spans[:4]] == [1, 0.5, 0.5, 1]
    assert spans[4:] == [300, spans[0]]


@needs_browser
def test_what_a_plot_shows_is_chosen_and_told(shown):
    """Scale, smoothing and lines; by arrow keys from point to point, also over equal steps."""
    run = shown()

    async def act(tab):
        page = tab.page
        await page.goto(run.web.url)
        await tab.until(DRAWN)
        await page.get_by_label("Log scale").check()
        assert await tab.value(f"{PLOT}.plot.scales.y.distr") == 3
        await page.get_by_label("Smoothing").fill("0.9")
        way = "(of) => of.slice(1).reduce((sum, v, i) => sum + Math.abs(v - of[i]), 0)"
        rough, smooth = await tab.value(
            f"[{PLOT}.told.lines[0].values, {PLOT}.data()[1]].map({way})"
        )
        said = []
        for _ in range(3):
            await page.locator(".canvas").first.press("ArrowRight")
            said.append(await page.locator("figure [role=status]").first.inner_text())
        beta = page.locator("figure", has_text="Shares").get_by_role("button", name="beta:0")
        await beta.click()
        return rough, smooth, said, await beta.get_attribute("aria-pressed")

    rough, smooth, said, pressed = chromium.visit("about:blank", act)
    assert smooth < rough / 2
    assert [re.match(r"step \d+", words)[0] for words in said] == ["step 10", "step 20", "step 30"]
    assert pressed == "false"


@needs_browser
def test_runs_beside_are_listed_with_their_pages(shown):
    """Those that have one by a link, the others by the command that shows them."""
    shown()
    run = shown()

    async def act(tab):
        await tab.page.goto(f"{run.web.url}/#token=x")
        await tab.page.locator("summary").click()
        text = await tab.wait_for("#runs", "its page")
        link = await tab.value("document.querySelector('#runs a').href")
        await tab.page.get_by_label("Overlay digits (run-0)").check()
        await tab.until(f"{LOSS}?.told.lines.length === 2")
        told = "board.view.plots.map(({title, lines}) => [title, lines.map((l) => l.label)])"
        together = await tab.value(told)
        await tab.page.get_by_role("combobox", name="Over").select_option("time")
        await tab.wait_for("#plots-status", "choose steps")
        await tab.page.get_by_label("Overlay digits (run-0)").uncheck()
        await tab.until("board.view.plots.length > 5")
        return text, link, together, await tab.text("#plots-status")

    text, link, together, status = chromium.visit("about:blank", act)
    own, both = ["digits (run-1)"], ["digits (run-1)", "digits (run-0)"]
    lines = {"Loss": both, "accuracy": own, "learning rate": both, "Throughput": both}
    assert dict(together) == lines  # the other one ended before it was evaluated
    assert status == ""
    assert "this one" in text
    assert link.startswith("http://127.0.0.1:")
    assert not link.startswith(run.web.url)
    assert "token" not in link


OWN_PLOT = (
    "new TimePlot(at('news').parentElement.appendChild(document.createElement('figure')), () => {})"
)


@needs_browser
def test_a_tip_tells_runs_apart(shown):
    """Values that differ look different, each with the look of its line; the nearest stands out."""
    run = shown()
    labels = [f"run {number}" for number in range(10)]
    lines = [
        {"label": label, "values": [0.9871 + 1e-4 * at] * 3} for at, label in enumerate(labels)
    ]
    told = {
        "title": "accuracy", "unit": "", "from": 0, "to": 2, "times": [0, 1, 2], "lines": lines,
        "marks": [], "isStep": True, "isFree": True,
    }  # fmt: skip

    async def act(tab):
        await tab.page.goto(run.web.url)
        await tab.until(DRAWN)
        await tab.value(f"(globalThis.tipped = {OWN_PLOT}, tipped.show({json.dumps(told)}))")
        place = "tipped.plot.valToPos(0.98750001, 'y')"
        await tab.value(f"tipped.plot.setCursor({{left: 100, top: {place}}})")
        rows = await tab.value("[...tipped.tip.children].map((row) => row.innerText.trim())")
        nearest = await tab.value("tipped.tip.querySelector('.nearest').innerText.trim()")
        looks = "[...tipped.tip.querySelectorAll('i')].map((square) => square.style.background)"
        return rows, nearest, await tab.value(looks)

    rows, nearest, looks = chromium.visit("about:blank", act)
    assert rows[1:] == [f"run {at} {round(0.9871 + 1e-4 * at, 4)}" for at in range(9, -1, -1)]
    assert nearest == "run 4 0.9875"
    assert len(set(looks)) == 10
