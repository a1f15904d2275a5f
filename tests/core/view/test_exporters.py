"""Names, labels and units of exporters, and the queries that ask for them."""

from __future__ import annotations

import math
import re

import pytest

from hetero_hvd.core.view.exporters import (
    FIGURES,
    FREE,
    MIB,
    gpu_of,
    in_field,
    node_of,
    query_of,
)
from hetero_hvd.messages import DeviceSample, NodeSampled


def test_every_figure_is_one_of_a_sample():
    """Of a GPU or a node, by whose exporter it is."""
    for figure in FIGURES:
        kind = DeviceSample if figure.family in {"dcgm", "own-gpu"} else NodeSampled
        assert figure.field in {*kind.__struct_fields__, FREE}, figure


def test_every_query_is_whole():
    """With its matchers and windows, and no place that is left open."""
    for figure in FIGURES:
        for select in ("", 'cluster="a"'):
            query = query_of(figure.query, select, 15.0)
            assert "$" not in query
            assert "{," not in query
            assert query.count("(") == query.count(")")
            assert select in query
            assert "[15000ms]" in query or "[37500ms]" in query


@pytest.mark.parametrize(
    ("labels", "node", "gpu"),
    [
        ({"gpu": "3", "Hostname": "b", "instance": "10.0.0.1:9400"}, "b", 3),
        ({"device": "nvidia7", "node": "c"}, "c", 7),
        ({"device": "2", "instance": "10.0.0.1:9100"}, "named", 2),
        ({"instance": "10.0.0.2:9100"}, "10.0.0.2", None),
        ({"instance": "[::1]:9100", "gpu": "²"}, "[::1]", None),
        ({"instance": "b", "gpu": "GPU-1"}, "b", None),
        ({"Hostname": "", "gpu": "-1"}, "", None),
        ({}, "", None),
    ],
)
def test_labels_name_a_node_and_a_gpu(labels, node, gpu):
    """By whichever label there is."""
    assert node_of(labels, {"10.0.0.1:9100": "named"}) == node
    assert gpu_of(labels) == gpu


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("use_ratio", 42.0, 0.42),
        ("use_ratio", 101.0, math.nan),
        ("memory_used_bytes", 80.0 * 1024, 80 * 1024 * MIB),
        ("memory_used_bytes", 80.0 * 2**30, math.nan),  # in bytes
        ("sm_clock_hertz", 1980.0, 1.98e9),
        ("power_watts", 140737488355328.0, math.nan),  # DCGM's "not known"
        ("energy_joules", 5e6, 5e3),
        ("energy_joules", 2.0**63 - 16, math.nan),  # the same of a whole number
        ("power_watts", -1.0, math.nan),
        ("power_watts", math.inf, math.nan),
        ("power_watts", math.nan, math.nan),
    ],
)
def test_values_are_in_the_fields_unit(field, value, expected):
    """And none where they are out of range."""
    figure = next(each for each in FIGURES if each.field == field)
    assert in_field(figure, value) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("interface", "is_own"),
    [("eth0", True), ("enp3s0f1np1", True), ("ib0", True), ("wlan0", True)]
    + [(name, False) for name in ("lo", "bond0", "team0", "eth0.100", "vlan7", "docker0", "wg0")],
)
def test_what_goes_through_a_card_counts_once(interface, is_own):
    """Bonds and VLANs are made of cards, which tell the same bytes."""
    (figure,) = (
        each
        for each in FIGURES
        if (each.family, each.field) == ("node", "network_sent_bytes_per_second")
    )
    (pattern,) = re.findall('device!~"([^"]*)"', figure.query)
    assert (re.fullmatch(pattern, interface) is None) == is_own
