"""Every bound stands on the page, as it is."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

from hetero_hvd.core.advice import thresholds
from hetero_hvd.core.advice.thresholds import THRESHOLDS, table
from tests.kit.checkout import CHECKOUT

NO_BOUNDS = {
    "GIB",
    "HOUR",
    "FREE",
    "MAX_NAMED",
    "MAX_CHANGES",
    "MAX_ROWS",
    "NORMAL_MAD",
    "MEDIAN_VARIANCE",
}
"""Units, constants of mathematics, what is nearly zero, and how much is named in a line."""


def test_the_page_has_the_table():
    """With its values, and a source for each."""
    assert "\n".join(table()) in (CHECKOUT / "docs" / "operations" / "advice.md").read_text()
    assert all(each.source for each in THRESHOLDS)


def numbers_of(path):
    """Names of a module's own constants that are numbers."""
    values = vars(import_module(f"hetero_hvd.core.advice.{path.stem}"))
    for line in ast.parse(path.read_text()).body:
        if isinstance(line, ast.Assign):
            for part in ast.walk(line.targets[0]):
                if isinstance(part, ast.Name) and isinstance(values[part.id], int | float):
                    yield f"{path.stem}.{part.id}", part.id


def test_no_bound_of_advice_is_missing():
    """In whatever module it stands."""
    path = Path(thresholds.__file__)
    modules = [each for each in path.parent.glob("*.py") if each.stem != "__init__"]
    numbers = [each for module in modules for each in numbers_of(module)]
    found = {full for full, name in numbers if name not in NO_BOUNDS}
    assert {"race.ERROR", "advice.WORTH_SECONDS", "race_verdict.SAME_RATIO"} <= found
    told = set(re.findall(r"\b\w+\.[A-Z_]+\b", path.read_text()))
    assert found <= told, found - told
