# ruff: noqa: INP001 - Sphinx reads this file by itself
"""How Sphinx makes a site of README.md and docs; `scripts/docs` calls it.

The pages are those that a reader of the repository sees: what holds them together is the list in
docs/index.md. Nothing is loaded from other servers, neither when it is built nor when it is read.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import hetero_hvd

CHECKOUT = Path(__file__).parents[2]
INDEX = "docs/index"

project = "hetero_hvd"
release = version = hetero_hvd.__version__
root_doc = INDEX
include_patterns = ["README.md", "docs/**.md", "docs/**.rst"]
exclude_patterns = [".*", "build", "runs", "tests", "hetero_hvd", "scripts"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
"""Headings have the anchors that GitHub gives them, so that a link with `#` is checked, too."""

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True

html_theme = "furo"
html_title = f"hetero_hvd {release}"
html_copy_source = False
html_show_sourcelink = False


def _contents(text: str) -> str:
    """The list of pages as the site's contents: a part for each heading, in the same order."""
    parts = ["\n```{toctree}\n:hidden:\n\nREADME <../README>\n```\n"]
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = part.partition(":")[0]
        lines = re.findall(r"\]\(([\w/-]+)\.(?:md|rst)\)", part)
        if title == "Reference":
            decisions = sorted((CHECKOUT / "docs" / "decisions").glob("*.md"))
            lines += [f"decisions/{page.stem}" for page in decisions]
        body = "\n".join(lines)
        parts.append(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{body}\n```\n")
    return text + "".join(parts)


def _read(_app: Sphinx, name: str, source: list[str]) -> None:
    """Adapt what is only right where a repository is browsed: a link to a folder."""

    def first_of(link: re.Match[str]) -> str:
        folder = (CHECKOUT / name).parent / link[1]
        first = min(folder.glob("*.*")).name if folder.is_dir() else ""
        return f"]({link[1]}/{first})" if first else link[0]

    if name == INDEX:
        source[0] = _contents(source[0])
    source[0] = re.sub(r"\]\(([\w./-]+)\)", first_of, source[0])


def _copy_pictures(app: Sphinx, _error: Exception | None) -> None:
    """Those of HTML in a page, which Sphinx does not look at, stand where the page is read."""
    shutil.copytree(
        CHECKOUT / "docs" / "images", app.outdir / "docs" / "images", dirs_exist_ok=True
    )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", _read)
    app.connect("build-finished", _copy_pictures)
