"""What a node's answers say of it, whatever they are."""

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.remote.examination import NodeFacts
from hetero_hvd.remote.node_findings import Reference, report_on

NOT_OURS = {
    "nothing": {},
    "no texts": {"interpreter": 3, "versions": 4},
    "versions that are none": {"interpreter": "python3", "versions": {"python": 3}},
    "a diagnosis with other words": {
        "interpreter": "/bin/python3",
        "digest": "1",
        "diagnosis": {"problems": [{"what": "a", "remedy": "b", "because": "c"}]},
    },
}


@pytest.mark.parametrize("seen", NOT_OURS.values(), ids=NOT_OURS)
def test_answers_that_are_not_ours_are_a_row(seen):
    """With what to do; nobody meets a traceback."""
    node = NodeConfig(name="alpha", address="alpha", launcher="ssh", python="/bin/python3")
    reference = Reference(versions={}, digest="1", script=None, directory="/")
    report = report_on(NodeFacts(node=node, seen=seen), reference)
    assert not report.can_train
    assert "answers are not those of hetero_hvd" in report.problems[0].what
