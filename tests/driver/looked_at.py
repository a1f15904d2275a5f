"""What is looked for on a page in a browser, whichever page it is."""

from __future__ import annotations

import pytest

SCREENS = {
    f"{width}, {'dark' if is_dark else 'light'}": (width, height, is_dark)
    for width, height in ((360, 740), (1440, 900), (3840, 2160))
    for is_dark in (False, True)
}
SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
WIDER = """[...document.querySelectorAll('body *')].filter((one) => one.getClientRects().length
  && !one.closest('thead, .canvas, .marks, .unseen')
  && (one.getBoundingClientRect().right > innerWidth + 0.5
    || one.getBoundingClientRect().left < -0.5))
  .map((one) => one.outerHTML)"""
OVERLAPPING = """(() => {
  const kinds = 'button, input, select, a, h1, h2, h3, label, td, li, p, legend, dt, dd, figure, '
    + 'progress, summary';
  const boxes = [...document.querySelectorAll(kinds)]
    .filter((one) => one.getClientRects().length)
    .filter((one) => !one.closest('.marks > *, #events > *, .unseen'))
    .map((one) => [one, one.getBoundingClientRect()]);
  const found = [];
  for (const [a, one] of boxes) for (const [b, other] of boxes) {
    if (a.contains(b) || b.contains(a)) continue;
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (across > 1 && down > 1) found.push(a.outerHTML + ' and ' + b.outerHTML);
  }
  return found;
})()"""
SERIOUS = {"serious", "critical"}


def on_screens(*always):
    """A test for each screen: these in the normal suite, all with --all."""
    shown = [
        pytest.param(screen, id=name, marks=() if name in always else [pytest.mark.matrix])
        for name, screen in SCREENS.items()
    ]
    return pytest.mark.parametrize("screen", shown)


async def faults_of(tab):
    """What is wrong with what a tab shows: boxes, scripts, and what axe-core finds serious."""
    from axe_playwright_python.async_playwright import Axe  # noqa: PLC0415 - where it is

    found = {
        "scrolls": await tab.value(SCROLLS),
        "wider": await tab.value(WIDER),
        "overlapping": await tab.value(OVERLAPPING),
        "errors": tab.errors,
    }
    checked = (await Axe().run(tab.page)).response
    assert len(checked["passes"]) > 10  # it has looked
    found["axe"] = [
        (each["id"], each["nodes"][0]["html"])
        for each in checked["violations"]
        if each["impact"] in SERIOUS
    ]
    return {name: faults for name, faults in found.items() if faults}
