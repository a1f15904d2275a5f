"""What is said of sets of nodes that were not measured."""

from __future__ import annotations

import pytest

from hetero_hvd.core.advice.predicted import predicted_speeds
from tests.core.advice.test_placements import BATCH, run_of, truth

SPEEDS = (1.0, 0.5, 0.1)
ALL = frozenset({"n0", "n1", "n2"})
WAITS = {  # seconds of a step's reduction that nobody could hide, by set of nodes
    "nothing is waited for": {ALL: 0.0},
    "all wait": {ALL: 0.05},
    "all wait, a pair was measured": {ALL: 0.05, frozenset({"n0", "n1"}): 0.01},
}


@pytest.mark.parametrize("case", WAITS)
def test_the_truth_lies_between_the_waits_of_larger_and_of_smaller_sets(case):
    """Each set that lacks a node is told once; one node alone waits for nobody."""
    waits = WAITS[case]
    run = run_of(truth(SPEEDS), noise=0.0)
    found = {nodes: (low, high) for nodes, low, high in predicted_speeds(run, "speed", waits)}
    assert ALL not in found
    assert len(found) == 6
    for nodes, (low, high) in found.items():
        seconds = 0.1 / sum(SPEEDS[int(name[1:])] for name in nodes)
        slowest, fastest = BATCH / (seconds + waits[ALL]), BATCH / seconds
        if len(nodes) == 1:
            slowest = fastest
        assert low <= slowest * 1.001
        assert high >= fastest * 0.999
        assert low >= 0.85 * slowest, nodes
        assert high <= 1.15 * fastest, nodes
