"""The nodes of an allocation, as nodes.yaml would list them."""

import pytest

from hetero_hvd.config import NodesFile
from hetero_hvd.errors import UserError
from hetero_hvd.slurm import allocation as granted
from hetero_hvd.slurm.allocation import allocation, as_yaml

ONE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "fast[1-2]"}
HETEROGENEOUS = {
    "SLURM_JOB_ID": "20",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "fast[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "fast[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "slow1,fast2",
}


@pytest.fixture(autouse=True)
def names(programs, monkeypatch):
    """No name of a node is known to this machine, but for `fast1`."""
    monkeypatch.setattr(granted, "_is_known", lambda name: name == "fast1")
    return programs


def nodes(environment, path=None):
    """Name, address, name for srun and component of each."""
    file = NodesFile([path] if path else [], {}, {}, granted=as_yaml(allocation(environment)))
    assert all(node.launcher == "srun" for node in file.current.nodes)
    return [
        (n.name, n.address, n.srun_options["nodelist"], n.srun_options.get("het-group"))
        for n in file.current.nodes
    ]


def test_each_node_is_reached_by_its_name_or_where_slurm_reaches_it():
    """Slurm may know an address of a node whose name nobody else knows."""
    assert nodes(ONE) == [("fast1", "fast1", "fast1", None), ("fast2", "10.0.0.2", "fast2", None)]


def test_components_of_a_heterogeneous_job_are_one_list():
    """Each node knows its component; one that two have is two nodes."""
    assert nodes(HETEROGENEOUS) == [
        ("fast1", "fast1", "fast1", "0"),
        ("fast2", "10.0.0.2", "fast2", "0"),
        ("slow1", "10.0.0.3", "slow1", "1"),
        ("fast2-2", "10.0.0.2", "fast2", "1"),
    ]


def test_names_that_ours_cannot_be_are_changed_and_stay_unlike():
    """For srun they are what Slurm calls them."""
    given = "gpu_1,gpu.1,_gpu_1,gpu-1"
    found = nodes({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": given})
    assert [name for name, *_ in found] == ["gpu-1", "gpu.1", "gpu-1-2", "gpu-1-3"]
    assert [name for _, _, name, _ in found] == given.split(",")


@pytest.mark.parametrize(
    ("more", "label"),
    [
        ({}, "12"),
        ({"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}, "10_3"),
        ({"SLURM_RESTART_COUNT": "2"}, "12"),
    ],
)
def test_a_run_is_called_by_the_job(more, label):
    """The same after each requeue, another one for each task of an array."""
    assert allocation(ONE | more).run_name == f"slurm-{label}"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "this is no Slurm job, as SLURM_JOB_ID is not set; call it in a script of sbatch"),
        ({"SLURM_JOB_ID": "x"}, "this is no Slurm job"),
        ({"SLURM_JOB_ID": "1"}, "SLURM_JOB_NODELIST is not set"),
    ],
)
def test_what_is_no_allocation_is_refused_in_one_line(environment, words):
    """It says where to call the command."""
    with pytest.raises(UserError, match=f"^--slurm: {words}") as error:
        allocation(environment)
    assert "\n" not in str(error.value)


def test_a_file_adds_settings_and_what_it_says_of_granted_nodes(tmp_path):
    """Of others that it lists nothing is used: they are not granted."""
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "job: {min_np: 2}\n"
        "nodes:\n"
        "  - {name: fast2, relative_speed: 0.5, address: 10.1.1.1}\n"
        "  - {name: elsewhere}\n"
    )
    file = NodesFile([path] if path else [], {}, {}, granted=as_yaml(allocation(ONE)))
    assert file.current.job.min_np == 2
    assert [(n.name, n.address, n.relative_speed) for n in file.current.nodes] == [
        ("fast1", "fast1", None),
        ("fast2", "10.1.1.1", 0.5),
    ]
    path.write_text("job: {min_np: 1}\n")
    assert file.refresh() == "changed"
    assert [node.name for node in file.current.nodes] == ["fast1", "fast2"]


BROKEN = [
    ("[]", "must be a mapping"),
    ("nodes: {name: [fast1]}", ""),
    ("nodes: [[fast1], fast1, {name: [fast1]}, {[name]: fast1}]", ""),
    ("nodes: nonsense", ""),
    ("", ""),
    ("nodes: [{name: fast1, slots: none, [a]: b}]", "slots"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_a_file_that_is_broken_is_refused_as_any_other(tmp_path, text, problem):
    """But for what is said of nodes that are not granted."""
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    if problem:
        with pytest.raises(UserError, match=problem):
            nodes(ONE, path)
    else:
        assert len(nodes(ONE, path)) == 2
