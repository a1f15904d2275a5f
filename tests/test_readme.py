"""What the README shows is what is there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hetero_hvd.config import load_cluster

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def block(language):
    """The only block of a language."""
    found = [content for name, content in BLOCKS if name == language]
    assert len(found) == 1
    return found[0]


def code_lines(path):
    """The lines of a file that are not blank."""
    return [line for line in path.read_text().splitlines() if line.strip()]


def test_the_diff_is_the_difference_between_the_two_examples():
    """Each added line is in one example only, each removed line in the other only."""
    plain = code_lines(ROOT / "docs/examples/digits_plain.py")[1:]
    ours = code_lines(ROOT / "docs/examples/digits.py")[1:]
    shown = [line for line in block("diff").splitlines() if line.strip()]
    added = [line[1:] for line in shown if line.startswith("+")]
    removed = [line[1:] for line in shown if line.startswith("-")]
    kept = list(plain)
    for line in removed:
        kept.remove(line)
    rest = list(ours)
    for line in added:
        rest.remove(line)
    assert rest == kept
    assert max(len(added), len(removed)) <= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    """Relative links name files that exist."""
    for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_stands_in_the_index():
    """Whoever looks for something finds its page there."""
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_the_two_commands_can_be_run():
    """They are there, and executable."""
    for name in ("demo", "test"):
        assert f"\nscripts/{name} " in TEXT
        assert os.access(ROOT / "scripts" / name, os.X_OK)


def test_the_cluster_shown_is_a_valid_one(tmp_path):
    """The example of nodes.yaml is read without a problem."""
    (tmp_path / "nodes.yaml").write_text(block("yaml"))
    cluster = load_cluster(tmp_path / "nodes.yaml", environment={}, flags={})
    assert [node.launcher for node in cluster.nodes] == ["local", "ssh", "ssh", "ssh"]


TEST_FOLDERS = {"F": "tests/faults", "W": "tests/worker", "D": "tests/driver", "C": "tests/cluster"}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "tests/README.md"], ids=lambda path: path.stem)
def test_each_test_that_a_page_names_is_there(page):
    """By its path from the top, or in `tests`; `F/` and the like are short for folders there."""
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for folder, name in re.findall(r"([\w/]*/)?(test_\w+\.py)", page.read_text()):
        short, _, rest = folder.partition("/")
        places = f"{TEST_FOLDERS.get(short, short)}/{rest}{name}", f"tests/{folder}{name}"
        is_there = any((ROOT / place).exists() for place in places)
        assert is_there or (not folder and name in names), f"{page.name}: {folder}{name}"
