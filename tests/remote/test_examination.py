"""Whatever a node answers, its row says it; see `cluster/test_examination.py` for real nodes."""

import json
import math
import time

import pytest

from hetero_hvd.cli.measure import doctor
from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.remote import examination
from hetero_hvd.remote.node_answers import checked
from hetero_hvd.remote.node_findings import Reference, report_on
from tests.remote.answers import LEFT_OUT, SHAPES, answer_with, parts_of

SEEN = {
    "interpreter": "/bin/python3",
    "directory": True,
    "script": None,
    "missing": [],
    "disk_bytes": 2**40,
    "shm_bytes": None,
    "digest": "1",
    "versions": {},
    "diagnosis": {
        "hardware": {"cores": 2, "memory_bytes": 1, "gpus": [{"name": "a", "memory_bytes": None}]},
        "problems": [{"what": "a", "consequence": "b", "remedy": "c", "stops_training": False}],
    },
}
LISTENING = {"address": "127.0.0.1", "port": 1, "driver": ""}
REACHED = {"alpha": "", "beta": ""}
REFERENCE = Reference(versions={}, digest="1", script=None, directory="/")


@pytest.fixture
def rows(monkeypatch):
    """The rows, by answers, of two nodes that give them."""
    nodes = [
        NodeConfig(name=name, address="localhost", python="/bin/python3", launcher="local")
        for name in ("alpha", "beta")
    ]

    def look(**answers):
        own = {"clock": time.time(), "look": SEEN, "listen": LISTENING, "reach": REACHED}
        answer_with(monkeypatch, examination, own | answers)
        cluster = ClusterConfig(nodes=tuple(nodes), job=JobConfig())
        found = examination.Examination(cluster, script=None, paths=(), timeout_seconds=9.0).run()
        reports = [report_on(facts, REFERENCE) for facts in found]
        json.dumps([report.as_dict() for report in reports])
        return [(report, doctor._row(report, REFERENCE)) for report in reports]

    return look


def test_good_answers_are_a_row(rows):
    """So that those below are told apart."""
    for report, row in rows():
        assert report.can_train
        assert "disk 1024.0 GiB" in row[5]


@pytest.mark.parametrize("name", ["clock", "look", "listen", "reach"])
def test_any_answer_is_a_row(rows, name):
    """Also what is no answer of ours; nobody meets a traceback."""
    for shape in SHAPES:
        for report, row in rows(**{name: shape}):
            assert row[0] == report.facts.node.name
    for report, _ in rows(**{name: ["strange"]}):
        assert not report.can_train
        assert "answers are not those of hetero_hvd" in report.problems[0].what


def test_what_else_is_in_an_answer_stays():
    """It is for whoever reads the JSON."""
    told = SEEN | {"more": 1}
    assert checked("examination_program", "look", told) is told


@pytest.mark.parametrize(
    ("name", "answer"), [("look", SEEN), ("listen", LISTENING), ("reach", REACHED)]
)
def test_any_part_of_an_answer_is_a_row(rows, name, answer):
    """However deep, and whether it is strange or not there."""
    for _, put in parts_of(answer):
        for shape in (LEFT_OUT, *SHAPES):
            for report, row in rows(**{name: put(shape)}):
                assert row[0] == report.facts.node.name


def test_an_answer_takes_no_place_of_ours(rows):
    """What it says of itself does not hide what was found out."""
    for report, _ in rows(look=SEEN | {"node": "x", "can_train": 3, "problems": 4, "address": 5}):
        told = report.as_dict()
        assert told["node"] == report.facts.node.name
        assert told["can_train"] is True
        assert told["address"] == "127.0.0.1"
        assert isinstance(told["problems"], list)
        assert not math.isnan(told["clock_offset_seconds"])


def test_a_problem_of_a_newer_version_is_told(rows):
    """What else it says of it is not for us."""
    told = json.loads(json.dumps(SEEN))
    told["diagnosis"]["problems"][0]["since"] = 3
    for report, _ in rows(look=told):
        assert [problem.what for problem in report.problems] == ["a"]
        assert report.can_train


NVIDIA = [{"name": "A100", "memory_bytes": 2**30}]
GPUS = {
    "NVIDIA's, which torch names too": (NVIDIA, ["NVIDIA A100"], "A100 1.0 GiB"),
    "NVIDIA's, of which torch sees none": (NVIDIA, [], "A100 1.0 GiB"),
    "AMD's and Intel's, of which NVML knows nothing": ([], ["MI300X", "B580"], "MI300X\nB580"),
    "none": ([], [], "no GPU"),
    "none, and an older hetero_hvd": ([], None, "no GPU"),
}


@pytest.mark.parametrize("name", GPUS)
def test_the_row_has_the_accelerators_of_any_vendor(rows, name):
    """Whoever knows of them."""
    gpus, devices, cell = GPUS[name]
    told = json.loads(json.dumps(SEEN))
    told["diagnosis"]["hardware"]["gpus"] = gpus
    if devices is not None:
        told["diagnosis"]["devices"] = devices
    for _, row in rows(look=told):
        assert f"\n{cell}\n" in row[5]
