"""The reference in docs/ says what the code does."""

from pathlib import Path

from hetero_hvd.config import load_cluster
from hetero_hvd.config.reference import reference

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_generated_one():
    """docs/reference/nodes-yaml.md is what `scripts/pages` writes."""
    assert (ROOT / "docs" / "reference" / "nodes-yaml.md").read_text(
        encoding="utf-8"
    ) == reference()


def test_its_example_is_valid(tmp_path: Path):
    """The example at the top of the page can be loaded."""
    example = reference().partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "nodes.yaml").write_text(example)
    cluster = load_cluster(tmp_path / "nodes.yaml", environment={}, flags={})
    assert [node.launcher for node in cluster.nodes] == ["local", "ssh"]


def test_the_shipped_cluster_is_the_demo():
    """nodes.yaml has three emulated hosts on this machine at speeds 1, 0.5 and 0.25."""
    nodes = load_cluster(ROOT / "nodes.yaml", environment={}, flags={}).nodes
    assert [(node.name, node.launcher, node.resolved_slots(8)) for node in nodes] == [
        ("alpha", "local", 1),
        ("beta", "local", 1),
        ("gamma", "local", 1),
    ]
    seconds = [node.emulate.seconds_per_sample for node in nodes]
    assert [seconds[0] / s for s in seconds] == [1, 0.5, 0.25]
