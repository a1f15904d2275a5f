"""Traces of queues, as files: what is read, and what is refused in one line."""

from __future__ import annotations

import json
import math

import pytest

from hetero_hvd.core.simulation.queues.generated_trace import eight_devices
from hetero_hvd.errors import UserError
from hetero_hvd.measure.queue_traces import read_trace
from hetero_hvd.measure.simulate_queue import devices_of

OWN = """job,user,submit_seconds,work,devices,max_devices,priority,needs,known,rate:v100,rate:k80
b,bob,60,7200,2,4,high,memory>=13GiB;kind!=t4,no,2.0,0.5
a,ann,0,3600,,,,,,1.0,
"""
ALIBABA = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
deletion_time,scheduled_time
pod-0,12000,16384,1,1000,,LS,Running,0,150,50
pod-1,6000,12288,2,1000,v100|p100,LS,Succeeded,10,110,10
pod-2,20000,65536,0,0,,LS,Running,20,30,20
pod-3,11908,47104,1,1000,,BE,Pending,30,40,
"""
PHILLY = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:00",
                "end_time": "2017-10-07 01:13:00",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
            },
            {"start_time": "2017-10-07 02:00:00", "end_time": None, "detail": []},
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    },
    {
        "status": "Killed",
        "vc": "ee9e8c",
        "jobid": "application_2",
        "attempts": [],
        "submitted_time": "2017-10-07 01:11:40",
        "user": "ce2f4c",
    },
]


def trace_of(tmp_path, text):
    """Read a file with this text."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return read_trace(path, eight_devices(), growth=2.0)


def test_our_own_layout(tmp_path):
    """In the order of submission, with defaults for what is left out."""
    (first, second), num_left_out = trace_of(tmp_path, OWN)
    assert num_left_out == 0
    assert first.request.job == "a"
    assert first.request.rates == {"v100": 1.0, "p100": 0.0, "k80": 0.0}
    assert (first.num_devices, first.request.max_devices, first.is_work_told) == (1, 1, True)
    assert (second.num_devices, second.request.max_devices) == (2, 4)
    assert second.request.priority == "high"
    assert list(map(str, second.request.needs)) == ["memory>=13GiB", "kind!=t4"]
    assert not second.is_work_told


def test_alibabas_layout(tmp_path):
    """The work is devices x seconds; who has no GPU or never ran is counted and left out."""
    (whole, two), num_left_out = trace_of(tmp_path, ALIBABA)
    assert num_left_out == 2
    assert whole.request.work == 100.0
    assert two.request.work == 200.0
    assert (two.num_devices, two.request.max_devices) == (2, 4)
    assert two.request.rates["k80"] == 0.0
    assert two.request.rates["v100"] > 0


def test_phillys_layout(tmp_path):
    """Each attempt's devices x seconds, on as many devices as the last had."""
    (job,), num_left_out = trace_of(tmp_path, json.dumps(PHILLY))
    assert num_left_out == 1
    assert job.request.user == "ce2f4c"
    assert job.request.work == pytest.approx(120.0)
    assert job.num_devices == 2


HEAD = "job,submit_seconds,work,rate:v100\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (HEAD, "holds no job"),
        ("job,work,rate:v100\n", "line 1: column submit_seconds is missing"),
        ("job,submit_seconds,work\n", "line 1: column rate:KIND is missing"),
        ("job,job,submit_seconds,work,rate:v100\n", "line 1: column job is there twice"),
        ("job,submit_seconds,work,rate:v100,colour\n", "line 1: column 'colour' must be of job"),
        (HEAD + "a,0,1\n", "line 2: found 3 columns, must be 4"),
        (HEAD + ",0,1,1\n", "line 2, column job: found '', must be a name"),
        (HEAD + "a,soon,1,1\n", "line 2, column submit_seconds: found 'soon', must be a number"),
        (HEAD + "a,-1,1,1\n", "column submit_seconds: found '-1', must be a number of at least 0"),
        (HEAD + "a,0,nan,1\n", "line 2, column work: found 'nan', must be a number above 0"),
        (HEAD + "a,0,0,1\n", "line 2, column work: found '0', must be a number above 0"),
        (HEAD + "a,0,inf,1\n", "line 2, column work: found 'inf'"),
        (HEAD + "a,0,1,-1\n", "column rate:v100: found '-1', must be a number of at least 0"),
        (HEAD + "a,0,1,0\n", "line 2, job 'a': 0 devices of pool 'default' can run it"),
        (HEAD + "a,0,1,1\n\na,0,1,1\n", "line 4, column job: 'a' is there already: "),
        (HEAD + 'a,0,1,"1\n', "line 2: unexpected end of data; must be CSV"),
        (HEAD[:-1] + ",devices\na,0,1,1,1.5\n", "column devices: found '1.5', must be a whole"),
        (HEAD[:-1] + ",min_devices\na,0,1,1,3\n", "2 devices of pool 'default' can run it, must"),
        (HEAD[:-1] + ",priority\na,0,1,1,urgent\n", "column priority: found 'urgent', must be of"),
        (HEAD[:-1] + ",needs\na,0,1,1,speed>3\n", "column needs: found 'speed>3', must be"),
        (HEAD[:-1] + ",known\na,0,1,1,maybe\n", "column known: found 'maybe', must be yes or no"),
        (HEAD[:-1] + ",shrinkable\na,0,1,1,no\n", "column time_limit_seconds: found '', must be"),
        (ALIBABA.replace("150", "late"), "line 2, column deletion_time: found 'late'"),
        (ALIBABA.replace("v100|p100", "T9"), "line 3, job 'pod-1': 0 devices"),
        ("[{]", "must be Philly's cluster_job_log"),
        ('[{"jobid": 1}]', "must be Philly's cluster_job_log"),
        (json.dumps(PHILLY).replace("2017-10-07 01:12:00", "early"), "job 1, column start_time"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path, text, words):
    """With file, line, column, what was found and what is allowed."""
    with pytest.raises(UserError) as error:
        trace_of(tmp_path, text)
    assert words in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "trace.csv"))
    assert len(error.value.lines) == 1


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    """Whether it is not there, a folder, or no text."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("nowhere", ".", "binary"):
        with pytest.raises(UserError, match=r"queue-trace\.md"):
            read_trace(tmp_path / name, eight_devices(), growth=2.0)


def test_devices_are_described():
    """Pool, kind, memory, number, speed."""
    found = devices_of("prod/v100:16GiB=9@1,t4=1@.3")
    assert len({each.device for each in found}) == 10
    assert {each.pool for each in found} == {"prod", "default"}
    assert found[0].memory_bytes == 16 << 30
    assert found[0].node == found[7].node != found[8].node
    assert math.isclose(found[-1].relative_speed, 0.3)


@pytest.mark.parametrize("text", ["", "v100", "v100=x", "v100=0", "v100=1@0", "v100:huge=1"])
def test_what_describes_no_devices_is_refused(text):
    """In words."""
    with pytest.raises(UserError, match="--devices"):
        devices_of(text)
