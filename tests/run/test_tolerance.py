"""What watches a training never stops it."""

from __future__ import annotations

import pytest

from hetero_hvd.run.tolerance import Tolerance


@pytest.mark.parametrize(
    "error", [KeyError("contention"), ZeroDivisionError(), OSError(28, "full")]
)
def test_an_error_is_told_once_and_counted(error, caplog):
    """Of each kind of what fails; with the traceback in the log, not on the terminal."""
    said = []
    tolerance = Tolerance(said.append)
    for what in ("the verdict", "the verdict", "the summary"):
        with tolerance.watching(what):
            raise error
    assert tolerance.num_errors == {"the verdict": 2, "the summary": 1}
    assert [line.partition(" has failed")[0] for line in said] == ["the verdict", "the summary"]
    assert all("training goes on" in line and "\n" not in line for line in said)
    assert caplog.text.count("Traceback") == 2


def test_an_order_to_end_is_obeyed():
    """Only errors are passed over."""
    tolerance = Tolerance(print)
    with pytest.raises(KeyboardInterrupt), tolerance.watching("the verdict"):
        raise KeyboardInterrupt
    assert not tolerance.num_errors
