"""What becomes of one of several things after a round of a race."""

from __future__ import annotations

from hetero_hvd.core.advice.race import Rounds, is_far_behind, median_ratio_of

SAME_RATIO = 0.03
"""What certainly differs by less is as good."""

AS_GOOD = f"as good as the best, to {SAME_RATIO:.0%}"


def verdict_of(
    rounds: Rounds, best: Rounds, *, error: float, is_last: bool, may_leave: bool
) -> str:
    """In words; empty: it is not known yet.

    Args:
        rounds: What was measured of it.
        best: Of the best one so far.
        error: Probability that it is wrong, > 0, < 1.
        is_last: Whether no round will follow.
        may_leave: Whether it may be given up as it is far behind.
    """
    ratio = median_ratio_of(rounds, best, error=error)
    in_words = f"{ratio.low:.1%} to {ratio.high:.1%} of the best"
    if ratio.low > 1 - SAME_RATIO and ratio.high < 1 + SAME_RATIO:
        return AS_GOOD
    if ratio.high < 1:
        return f"worse: {in_words}"
    if may_leave and is_far_behind(rounds, best):
        return f"worse: {ratio.middle:.0%} of the best in {len(rounds)} rounds"
    if is_last:
        about = f"about {ratio.middle:.0%} of the best"
        return f"not told apart: {in_words if ratio.low else about}"
    return ""
