"""The first steps with nothing known: clusters drawn by seed, and what is counted."""

import pytest

from benchmarks.comparisons import first_steps
from benchmarks.peers import Run
from benchmarks.tables import Effort


@pytest.mark.parametrize("seed", range(5))
def test_a_drawn_cluster_is_that_of_its_seed(seed):
    """Another one for each seed, with steps that are long enough for deadlines to hold."""
    title, cluster = first_steps.drawn_cluster(seed)
    assert first_steps.drawn_cluster(seed) == (title, cluster)
    assert first_steps.drawn_cluster(seed + 1)[1] != cluster
    assert 0.1 <= cluster.step_seconds("oracle") <= 0.3
    assert sum(cluster.best_shares) == cluster.global_batch_size


def test_what_is_measured_before_the_first_step_counts(monkeypatch):
    """A row for each peer that ran; the first steps are the first ones, the long one among them."""
    _, cluster = first_steps.drawn_cluster(1)
    ideal = cluster.global_batch_size / cluster.ideal_samples_per_second
    long = Run(step_seconds=(2 * ideal, *[ideal] * 9), losses=(), accuracies=())
    turns = [{"measured": long, "static": long}, {"measured": long}]
    monkeypatch.setattr(first_steps, "take_turns", lambda *_: turns)
    effort = Effort(repeats=2, num_steps=10)
    tables = list(first_steps.first_steps({"known": cluster}, effort, print))
    assert len(tables) == 1 + first_steps.NUM_DRAWN
    assert [row[0] for row in tables[0].rows] == ["measured", "static"]
    assert tables[0].measured["measured"] == pytest.approx([10 / 11] * 2)
    assert tables[0].measured["measured, the first 5"] == pytest.approx([5 / 6] * 2)
    assert [number.is_reached for number in tables[0].numbers] == [False, False]
