"""Conditions on devices, as they are written."""

from __future__ import annotations

import pytest

from hetero_hvd.core.queue.needs import DeviceNeed, memory_bytes
from hetero_hvd.errors import UserError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("memory>=16GiB", True),
        ("memory > 16GiB", False),
        ("memory<=17GB", False),
        ("memory<17.2GB", True),
        ("memory==17179869184", True),
        ("memory!=16GiB", False),
        ("kind==v100", True),
        ("kind!=v100", False),
        ("node!=beta", True),
        ("node==beta", False),
    ],
)
def test_each_comparison(text, met):
    """Of a V100 with 16 GiB on alpha."""
    need = DeviceNeed.parse(text)
    assert need.is_met_by(memory_bytes=16 * GIB, kind="v100", node="alpha") == met
    assert DeviceNeed.parse(str(need)) == need


@pytest.mark.parametrize("text", ["", "memory", "memory>=", "memory>=big", "speed>1", "kind>=v100"])
def test_what_is_no_condition_is_refused(text):
    """With what one looks like."""
    with pytest.raises(UserError, match="needs: found"):
        DeviceNeed.parse(text)


@pytest.mark.parametrize("text", ["x", "16 GiB GiB", "-1GiB", "1,5GiB", "nan"])
def test_what_is_no_size_is_refused(text):
    """Naming where it stands."""
    with pytest.raises(UserError, match="here: found"):
        memory_bytes(text, where="here")


@pytest.mark.parametrize("text", ["memory>=16GiB", "memory<512MB", "memory==1TB", "memory>1023B"])
def test_a_size_is_shown_as_it_is_written(text):
    """People read it in what the queue answers."""
    assert str(DeviceNeed.parse(text)) == text
