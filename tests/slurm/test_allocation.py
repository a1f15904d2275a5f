"""The nodes of an allocation, as nodes.yaml would list them."""

import os

import pytest

from hetero_hvd.config import NodesFile
from hetero_hvd.errors import UserError
from hetero_hvd.run.records.earlier_run import RUN_NAME
from hetero_hvd.slurm import allocation as granted
from hetero_hvd.slurm.allocation import allocation, as_yaml
from tests.slurm.conftest import NODES

ONE = "12|12|RUNNING|10:00|fast[1-2]\n"
HETEROGENEOUS = "21|20+1|RUNNING|10:00|slow1,fast2\n20|20+0|RUNNING|10:00|fast[1-2]\n"
ARRAY = (
    "10|10_3|RUNNING|10:00|fast1\n"
    "11|10_0|RUNNING|10:00|fast[1-2]\n"
    "13|10_1|COMPLETED|0:00|slow1\n"
    "10|10_[4-5]|PENDING|10:00|\n"
)


@pytest.fixture(autouse=True)
def names(programs, monkeypatch):
    """No name of a node is known to this machine, but for `fast1`."""
    known = {"fast1": ["10.9.0.1"]}
    monkeypatch.setattr(granted, "_ipv4", lambda name: known.get(name, [name] * (name[0] == "1")))
    return programs


@pytest.fixture
def job(programs):
    """Tells Slurm of jobs; gives the allocation of the one with this number."""

    def job(records=ONE, number="12", **environment):
        (programs / "squeue.jobs").write_text(records)
        return allocation({"SLURM_JOB_ID": number, **environment})

    return job


def nodes(granted_nodes, path=None):
    """Name, address, name for srun and component of each."""
    file = NodesFile([path] if path else [], {}, {}, granted=as_yaml(granted_nodes))
    assert all(node.launcher == "srun" for node in file.current.nodes)
    return [
        (n.name, n.address, n.srun_options["nodelist"], n.srun_options.get("het-group"))
        for n in file.current.nodes
    ]


def test_each_node_is_reached_by_its_name_or_where_slurm_reaches_it(job):
    """Slurm may know an address of a node whose name nobody else knows."""
    assert nodes(job()) == [("fast1", "fast1", "fast1", None), ("fast2", "10.0.0.2", "fast2", None)]


HERE = ["127.0.1.1"]
"""What Debian's /etc/hosts says of a machine's own name."""
ADDRESSES = {
    "known to all": ({"fast1": ["10.0.0.1"], "fast2": ["10.0.0.2"]}, {}, ["fast1", "fast2"]),
    "Slurm knows better": (
        {"fast1": HERE, "fast2": ["10.0.0.2"]},
        {"fast1": "10.0.0.1"},
        ["10.0.0.1", "fast2"],
    ),
    "nobody knows, but others are seen": (
        {"fast1": HERE, "fast2": ["10.0.0.2"]},
        {"fast1": "fast1"},
        ["10.0.0.77", "fast2"],
    ),
    "several addresses, one of them no use": (
        {"fast1": ["10.0.0.1", *HERE], "fast2": ["10.0.0.2"]},
        {"fast1": "fast1"},
        ["10.0.0.77", "fast2"],
    ),
    "all on one machine": (
        {"fast1": HERE, "fast2": HERE},
        {"fast1": "127.0.0.1", "fast2": "127.0.0.1"},
        ["127.0.0.1", "127.0.0.1"],
    ),
    "unknown to all": ({"fast1": ["10.0.0.1"]}, {}, ["fast1", "fast2"]),
    "alone": ({"fast1": HERE}, {}, ["fast1"]),
    "alone and unknown": ({}, {"fast1": "10.0.0.1"}, ["10.0.0.1"]),
}


@pytest.mark.parametrize(("known", "told", "found"), ADDRESSES.values(), ids=ADDRESSES)
def test_a_name_that_means_this_machine_only_is_not_given_to_others(
    job, programs, monkeypatch, *, known, told, found
):
    """Workers on the driver's own node would wait at 127.0.0.1, where no other worker is."""
    lines = "".join(NODES.format(name, address) for name, address in told.items())
    (programs / "scontrol.nodes").write_text(lines)
    monkeypatch.setattr(granted, "_ipv4", lambda name: known.get(name, [name] * (name[0] == "1")))
    monkeypatch.setattr(granted, "_own_address_towards", {"fast2": "10.0.0.77"}.get)
    expression = "fast[1-2]" if len(found) > 1 else "fast1"
    records = f"12|12|RUNNING|10:00|{expression}\n"
    assert [address for _, address, _, _ in nodes(job(records))] == found


def test_what_a_name_means_is_asked_of_the_system(monkeypatch):
    """Names that cannot be are unknown."""
    monkeypatch.undo()
    assert granted._ipv4("localhost") == ["127.0.0.1"]
    assert granted._ipv4("no such name") == granted._ipv4("a" * 70) == granted._ipv4("") == []
    assert granted._own_address_towards("127.0.0.2") == "127.0.0.1"
    assert granted._own_address_towards("no such name") == ""


@pytest.mark.parametrize("number", ["20", "21"])
def test_components_of_a_heterogeneous_job_are_one_list(job, number):
    """Each node knows its component; one that two have is two nodes."""
    assert nodes(job(HETEROGENEOUS, number)) == [
        ("fast1", "fast1", "fast1", "0"),
        ("fast2", "10.0.0.2", "fast2", "0"),
        ("slow1", "10.0.0.3", "slow1", "1"),
        ("fast2-2", "10.0.0.2", "fast2", "1"),
    ]


def test_names_that_ours_cannot_be_are_changed_and_stay_unlike(job):
    """For srun they are what Slurm calls them."""
    given = "gpu_1,gpu.1,_gpu_1,gpu-1"
    found = nodes(job(f"1|1|RUNNING|10:00|{given}\n", "1"))
    assert [name for name, *_ in found] == ["gpu-1", "gpu.1", "gpu-1-2", "gpu-1-3"]
    assert [name for _, _, name, _ in found] == given.split(",")


@pytest.mark.parametrize(
    ("records", "number", "label", "first_number"),
    [
        (ONE, "12", "12", 12),
        (ARRAY, "10", "10_3", 10),
        (ARRAY, "11", "10_0", 11),
        (HETEROGENEOUS, "20", "20", 20),
        (HETEROGENEOUS, "21", "20", 20),
    ],
)
def test_a_job_has_one_name_that_means_no_other(job, records, number, label, first_number):
    """The same after each requeue; the number of an array's last task would mean all tasks."""
    found = job(records, number)
    assert (found.label, found.number) == (label, first_number)
    assert found.run_name == f"slurm-{os.getuid()}-{label}"


CLUSTERS = {"kit": "kit", "a.b-c d": "a_b_c_d", "\u00e4": "_", "x" * 64: "x" * 20}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_jobs_of_one_number_in_two_clusters_are_two_runs(job, cluster):
    """Whose checkpoints may be in one store; whatever the cluster is called."""
    name = job(ARRAY, "10", SLURM_CLUSTER_NAME=cluster).run_name
    assert name == f"slurm-{CLUSTERS[cluster]}-{os.getuid()}-10_3"
    assert RUN_NAME.fullmatch(name)


HANDED_DOWN = {
    "SLURM_ARRAY_JOB_ID": "10",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "other[1-2]",
    "SLURM_JOB_NODELIST": "other1",
}
"""Found in a job that was submitted in another one: sbatch hands its variables down."""


def test_variables_of_the_job_in_which_this_was_submitted_count_nothing(job):
    """Else two jobs would have one name, one folder and one another's checkpoints."""
    found = job(ONE, **HANDED_DOWN)
    assert found.label == "12"
    assert [(n.slurm_name, n.group) for n in found.nodes] == [("fast1", None), ("fast2", None)]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "this is no Slurm job, as SLURM_JOB_ID is not set; call it in a script of sbatch"),
        (
            {"SLURM_JOB_ID": "x"},
            "this is no Slurm job, as SLURM_JOB_ID is 'x', which is no number of a job; call it",
        ),
        ({"SLURM_JOB_ID": "²"}, "this is no Slurm job, as SLURM_JOB_ID is '²', which"),
        ({"SLURM_JOB_ID": 5000 * "9"}, f"this is no Slurm job, as SLURM_JOB_ID is '{40 * '9'}', "),
        ({"SLURM_JOB_ID": "99"}, "job 99, which SLURM_JOB_ID names, has no nodes"),
    ],
)
def test_what_is_no_allocation_is_refused_in_one_line(environment, words):
    """It says where to call the command."""
    with pytest.raises(UserError, match=f"^--slurm: {words}") as error:
        allocation(environment)
    assert "\n" not in str(error.value)


STATES = {"RUNNING": 2, "SUSPENDED": 2, "COMPLETING": 2, "COMPLETED": 0, "TIMEOUT": 0, "PENDING": 0}


@pytest.mark.parametrize("state", STATES)
def test_what_has_ended_is_no_allocation(job, state):
    """Slurm lists it for minutes with the nodes that it had, which others have now."""
    records = f"12|12|{state}|10:00|fast[1-2]\n"
    if STATES[state]:
        assert len(job(records).nodes) == STATES[state]
    else:
        with pytest.raises(UserError, match="job 12, which SLURM_JOB_ID names, has no nodes"):
            job(records)


def test_a_part_that_has_ended_has_no_nodes(job):
    """The others of a heterogeneous job have theirs."""
    found = nodes(job(HETEROGENEOUS.replace("20+1|RUNNING", "20+1|NODE_FAIL"), "20"))
    assert [group for *_, group in found] == ["0", "0"]


def test_a_file_adds_settings_and_what_it_says_of_granted_nodes(job, tmp_path):
    """Of others that it lists nothing is used: they are not granted."""
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "job: {min_np: 2}\n"
        "nodes:\n"
        "  - {name: fast2, relative_speed: 0.5, address: 10.1.1.1}\n"
        "  - {name: elsewhere}\n"
    )
    file = NodesFile([path] if path else [], {}, {}, granted=as_yaml(job()))
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
    ("nodes: {name: [fast1]}", "must be a list"),
    ("nodes: [[fast1], fast1, {name: [fast1]}, {[name]: fast1}]", "must be a mapping"),
    ("nodes: nonsense", "must be a list"),
    ("", ""),
    ("nodes: [{name: fast1, slots: none, [a]: b}]", "slots"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_a_file_that_is_broken_is_refused_as_any_other(job, tmp_path, text, problem):
    """As to its nodes, also where none of them is granted."""
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    if problem:
        with pytest.raises(UserError, match=problem):
            nodes(job(), path)
    else:
        assert len(nodes(job(), path)) == 2
