"""Which nodes get an agent, what it takes, and what is refused."""

import pytest

from hetero_hvd.errors import UserError
from hetero_hvd.messages import NODE_NAME
from hetero_hvd.ray_cluster.placement import (
    ClusterNode,
    Placement,
    name_of,
    nodes_in,
    placement,
    read_resources,
)
from tests.ray_cluster.conftest import entry

TEXTS = {
    "nothing": ("", {}),
    "one": ("GPU=2", {"GPU": 2.0}),
    "several, with blanks": ("GPU=1, CPU=8", {"GPU": 1.0, "CPU": 8.0}),
    "a part of a GPU": ("GPU=0.5", {"GPU": 0.5}),
    "the user's own": ("accelerator_type:A100=0.001", {"accelerator_type:A100": 0.001}),
    "none": ("GPU=0,CPU=1", {"GPU": 0.0, "CPU": 1.0}),
    "no amount": ("GPU", "found 'GPU', must be NAME=AMOUNT"),
    "no number": ("GPU=all", "found 'GPU=all', must be NAME=AMOUNT"),
    "less than nothing": ("CPU=-1", "found 'CPU=-1', must be NAME=AMOUNT"),
    "other digits": ("CPU=٣", "must be NAME=AMOUNT"),
    "endless": ("CPU=" + "9" * 400, "must be NAME=AMOUNT"),
    "no name": ("=1", "found '=1', must be NAME=AMOUNT"),
    "twice": ("CPU=1,CPU=2", "found 'CPU=2', must be NAME=AMOUNT, each name once"),
    "one and a half": ("GPU=1.5", "found GPU=1.5, must be a whole number, or less than 1"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_to_take_is_read_or_refused(name):
    """In one line, with the option's name."""
    text, wanted = TEXTS[name]
    if isinstance(wanted, dict):
        assert read_resources(text) == wanted
        return
    with pytest.raises(UserError) as refused:
        read_resources(text)
    assert str(refused.value).startswith("--ray-resources: ")
    assert wanted in str(refused.value)
    assert "\n" not in str(refused.value)


def node(address="10.0.0.1", label="box", **resources):
    """A node of a cluster."""
    return ClusterNode(node_id="abcdef0123", label=label, address=address, resources=resources)


PLACEMENTS = {
    "GPUs": (node(GPU=2, CPU=16), "", Placement(resources={"GPU": 2, "CPU": 2}, slots=2)),
    "fewer CPUs than GPUs": (
        node(GPU=4, CPU=1),
        "",
        Placement(resources={"GPU": 4, "CPU": 1}, slots=4),
    ),
    "GPUs and no CPU": (node(GPU=4), "", Placement(resources={"GPU": 4, "CPU": 0}, slots=4)),
    "CPUs": (node(CPU=16), "", Placement(resources={"CPU": 16}, slots=1)),
    "a head that lends nothing": (node(), "", "it has CPU=0, and 1 is needed"),
    "some of its GPUs": (
        node(GPU=8, CPU=64),
        "GPU=2,CPU=8",
        Placement(resources={"GPU": 2, "CPU": 8}, slots=2, num_threads=4),
    ),
    "less than a CPU for each": (
        node(GPU=8, CPU=64),
        "GPU=4,CPU=2",
        Placement(resources={"GPU": 4, "CPU": 2}, slots=4, num_threads=1),
    ),
    "a part of a GPU": (
        node(GPU=1, CPU=4),
        "GPU=0.5",
        Placement(resources={"GPU": 0.5}, slots=1),
    ),
    "no GPU, of a node that has some": (
        node(GPU=1, CPU=4),
        "GPU=0,CPU=4",
        Placement(resources={"CPU": 4}, slots=1, num_threads=4),
    ),
    "too few": (node(GPU=1, CPU=4), "GPU=2", "it has GPU=1, and 2 is needed"),
    "what it has not": (node(CPU=4), "unicorn=1", "it has unicorn=0, and 1 is needed"),
    "a name": (node("gpu07.cluster", CPU=4), "", "its address gpu07.cluster is no IPv4 address"),
    "IPv6": (node("fd00::1", CPU=4), "", "its address fd00::1 is no IPv4 address"),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_node_is_taken_or_left_out_in_words(name):
    """By what it has in all: what others use of it, Ray waits for."""
    given, text, wanted = PLACEMENTS[name]
    found = placement(given, read_resources(text))
    if isinstance(wanted, str):
        assert str(found).startswith(wanted)
    else:
        assert found == wanted


NAMES = {
    "its own": ("gpu-07", set(), "gpu-07"),
    "of two the second": ("gpu-07", {"gpu-07"}, "gpu-07-abcdef"),
    "with what nodes.yaml does not allow": ("gpu_07 (spare)", set(), "gpu-07-spare"),
    "nothing of which is allowed": ("_ü_", set(), "node-abcdef"),
    "too long": ("x" * 80, set(), "x" * 57),
    "too long, and there": ("x" * 80, {"x" * 57}, "x" * 57 + "-abcdef"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_node_has_a_name_of_its_own(name):
    """As nodes.yaml allows it."""
    label, taken, wanted = NAMES[name]
    assert name_of(node(label=label), taken) == wanted
    assert NODE_NAME.fullmatch(wanted)


def test_nodes_that_live_are_called_as_ray_was_told_or_by_their_host():
    """Ray gives a node without a name that of its address."""
    listed = [
        entry("3", host="other"),
        entry("1", "worker"),
        entry("2", alive=False),
    ]
    assert [(n.node_id, n.label) for n in nodes_in(listed)] == [("3", "other"), ("1", "worker")]
