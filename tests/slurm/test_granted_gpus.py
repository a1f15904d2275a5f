"""A step asks for its node's GPUs by number where the job's own number is of another whole."""

import pytest

from hetero_hvd.slurm.allocation import allocation, as_yaml
from hetero_hvd.slurm.granted_gpus import gpus_to_ask_for

ABOUT = "JobId=12 JobName=a b {}Requeue=1 Restarts=0 BatchFlag=1 JOB_GRES=gpu:3 {} MinCPUsNode=1 {}"
FAST = "Nodes=fast1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)   Nodes=fast2 CPU_IDs=0 Mem=0 GRES={}"
EACH = "Nodes=fast[1-2] CPU_IDs=0-1 Mem=100 GRES={}"
CASES = {
    "for the job": (FAST.format("gpu:1(IDX:0)"), "TresPerJob=gres:gpu:3", "2", "1"),
    "for a socket": (EACH.format("gpu:1(IDX:0)"), "TresPerSocket=gres:gpu:1", "1", "1"),
    "newer words": (FAST.format("gpu:1(IDX:0)"), "TresPerJob=gres/gpu:3", "2", "1"),
    "with a type": (
        EACH.format("gpu:v100:2(IDX:0,3)"),
        "TresPerJob=gres:gpu:4",
        "v100:2",
        "v100:2",
    ),
    "two types, and others": (
        EACH.format("nic:1(IDX:0),gpu:a:2(IDX:0-1),gpu:b:1(IDX:2)"),
        "TresPerJob=gres:gpu:6",
        "a:2,b:1",
        "a:2,b:1",
    ),
    "none on a node": (FAST.format(""), "TresPerJob=gres:gpu:2", "2", None),
    "for a node": (EACH.format("gpu:1(IDX:0)"), "TresPerNode=gres:gpu:1", None, None),
    "for a task": (EACH.format("gpu:1(IDX:0)"), "TresPerTask=gres:gpu:1", None, None),
    "others for the job": (
        EACH.format("nic:1(IDX:0)"),
        "TresPerJob=gres:nic:2",
        None,
        None,
    ),
    "nothing": (EACH.format(""), "TresPerNode=", None, None),
}


@pytest.mark.parametrize(("nodes", "asked", "first", "second"), CASES.values(), ids=CASES)
def test_the_number_is_that_of_the_node(programs, nodes, asked, first, second):
    """And what srun is given, where it has to be."""
    (programs / "scontrol.job").write_text(f"{ABOUT.format('', nodes, asked)}\n")
    expected = {(None, name): n for name, n in (("fast1", first), ("fast2", second)) if n}
    assert gpus_to_ask_for("12") == expected
    (programs / "squeue.jobs").write_text("12|12|RUNNING|10:00|fast[1-2]\n")
    text = as_yaml(allocation({"SLURM_JOB_ID": "12"})).decode()
    assert text.count('"gpus"') == len(expected)


def test_each_part_of_a_job_has_its_own(programs):
    """They may share a node."""
    lines = [
        ABOUT.format(f"HetJobOffset={part} ", EACH.format(f"gpu:{part + 1}(IDX:0)"), asked)
        for part, asked in enumerate(["TresPerJob=gres:gpu:2", "TresPerJob=gres:gpu:4"])
    ]
    (programs / "scontrol.job").write_text("\n".join(lines))
    assert gpus_to_ask_for("12") == {
        (0, "fast1"): "1",
        (0, "fast2"): "1",
        (1, "fast1"): "2",
        (1, "fast2"): "2",
    }
