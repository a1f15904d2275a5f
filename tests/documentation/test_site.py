"""The pages as a site: every link inside leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess

import pytest

import hetero_hvd
import hetero_hvd.data
from tests.documentation.page_commands import PAGES
from tests.kit.checkout import CHECKOUT, variables
from tests.kit.screens.moving_picture import MAX_BYTES

HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([\w./-]*)#([^)]+)\)")
LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]* src=\"(.*?)\"|<link[^>]* href=\"(.*?)\"")


def anchors_of(page):
    """Of its headings, as GitHub makes them."""
    found = {}
    for heading in HEADING.findall(BLOCK.sub("", page.read_text())):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found[anchor] = found.get(anchor, -1) + 1
        yield f"{anchor}-{number}" if number else anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_to_a_heading_leads_to_one(page):
    """On this page, or on another one."""
    links = LINK.findall(BLOCK.sub("", page.read_text()))
    wrong = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in anchors_of((page.parent / target) if target else page)
    ]
    assert wrong == []


def test_pictures_of_html_are_there_and_small():
    """Those of the README's first screen, for a desk and for a phone."""
    names = re.findall(r'(?:src|srcset)="(.*?)"', (CHECKOUT / "README.md").read_text())
    assert len(names) == 2
    for name in names:
        assert 10_000 < (CHECKOUT / name).stat().st_size <= MAX_BYTES


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """What `scripts/docs` makes; it takes no warning."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    words = [CHECKOUT / "scripts" / "docs", folder]
    done = subprocess.run(words, env=variables(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_the_site_has_all_pages_and_loads_nothing_from_elsewhere(site):
    """Styles, scripts, fonts and the search are its own."""
    made = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    assert made > {str(page.relative_to(CHECKOUT).with_suffix("")) for page in PAGES}
    loaded = {
        url
        for path in site.rglob("*.html")
        for urls in LOADED.findall(path.read_text())
        for url in urls
    }
    assert any(url.endswith(".css") or ".css?" in url for url in loaded)
    assert [url for url in loaded if re.match(r"(https?:)?//", url)] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert [text for text in styles if re.search(r"(url\(|@import)[\"' ]*(https?:)?//", text)] == []


@pytest.mark.matrix
def test_the_reference_has_all_that_a_script_imports(site):
    """By the names under which it is imported."""
    page = (site / "docs" / "reference" / "api.html").read_text()
    public = {f"hetero_hvd.{name}" for name in hetero_hvd.__all__ if name != "__version__"}
    public |= {f"hetero_hvd.data.{name}" for name in hetero_hvd.data.__all__}
    assert [name for name in sorted(public) if f'id="{name}"' not in page] == []
