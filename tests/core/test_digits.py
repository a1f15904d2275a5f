"""Numbers in text of others: read, or none; never an error."""

import pytest

from hetero_hvd.core.digits import MAX_DIGITS, whole_number

NUMBERS = {"0": 0, "7": 7, "007": 7, "9" * MAX_DIGITS: 10**MAX_DIGITS - 1, "0" * 5000 + "8": 8}
NONE = ["", "-1", "+1", " 1", "1\n", "1.5", "1e3", "1_0", "0x1", "x", "nan", "\N{SUPERSCRIPT TWO}"]
NONE += ["\N{ARABIC-INDIC DIGIT ONE}", "9" * (MAX_DIGITS + 1), "9" * 5000, "\udcff"]


@pytest.mark.parametrize("text", [*NUMBERS, *NONE], ids=lambda text: ascii(text[:20]))
def test_plain_digits_are_a_number_and_nothing_else_is(text):
    """Not what other alphabets write, nor what no counter ever reaches."""
    assert whole_number(text) == NUMBERS.get(text)
