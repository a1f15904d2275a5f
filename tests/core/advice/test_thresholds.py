"""Every bound stands on the page, as it is."""

from __future__ import annotations

from hetero_hvd.core.advice.thresholds import THRESHOLDS, table
from tests.kit.checkout import CHECKOUT


def test_the_page_has_the_table():
    """With its values, and a source for each."""
    assert "\n".join(table()) in (CHECKOUT / "docs" / "operations" / "advice.md").read_text()
    assert all(each.source for each in THRESHOLDS)
