"""Values of a good file, precedence, and where each value came from."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.config import (
    JOB_SETTINGS,
    ClusterConfig,
    EmulateConfig,
    JobConfig,
    NodeConfig,
    effective_settings,
    load_cluster,
)
from hetero_hvd.config.resolve import parse_cluster
from hetero_hvd.errors import ConfigError

FULL = """\
job: {min_np: 2, progress_seconds: 1e1, balance: off, output:, max_np: 8}
nodes:
  - name: alpha
    slots: 2
    devices: [1, GPU-0123-abc]
    memory_limit_bytes: 8GiB
    max_local_batch_size: 64
    relative_speed: 1
    interface: eth0
    python: /opt/python
    directory: "2024"
    env: {DEBUG: yes, THREADS: 010, EMPTY: }
  - name: beta
    address: 10.0.0.2
    user: train
    port: 2222
    identity_file: ~/.ssh/id
    ssh_options: {StrictHostKeyChecking: no, ConnectTimeout: 5}
    emulate: {seconds_per_sample: 0.001, overhead_seconds: .5}
"""


def load(tmp_path: Path, content: str, environment=None, **flags: object) -> ClusterConfig:
    """Load a file with that content."""
    path = tmp_path / "nodes.yaml"
    path.write_text(content)
    return load_cluster(path, environment=environment or {}, flags=flags)


def test_every_kind_of_value(tmp_path: Path):
    """Each setting decides what its text means: `010` is text in env, `off` is false as a flag."""
    cluster = load(tmp_path, FULL)
    assert cluster.job == JobConfig(min_np=2, progress_seconds=10, balance=False, max_np=8)
    assert cluster.nodes == (
        NodeConfig(
            name="alpha",
            address="127.0.0.1",
            launcher="local",
            slots=2,
            devices=(1, "GPU-0123-abc"),
            memory_limit_bytes=8 * 2**30,
            max_local_batch_size=64,
            relative_speed=1.0,
            interface="eth0",
            python="/opt/python",
            directory="2024",
            env={"DEBUG": "yes", "THREADS": "010", "EMPTY": ""},
        ),
        NodeConfig(
            name="beta",
            address="10.0.0.2",
            launcher="ssh",
            user="train",
            port=2222,
            identity_file="~/.ssh/id",
            ssh_options={"StrictHostKeyChecking": "no", "ConnectTimeout": "5"},
            emulate=EmulateConfig(seconds_per_sample=0.001, overhead_seconds=0.5),
        ),
    )


@pytest.mark.parametrize(
    ("keys", "address", "launcher"),
    [
        ({}, "127.0.0.1", "local"),
        ({"launcher": "ssh"}, "a", "ssh"),
        ({"address": "localhost"}, "localhost", "local"),
        ({"address": "::1"}, "::1", "local"),
        ({"address": "127.0.0.7"}, "127.0.0.7", "local"),
        ({"address": "a.example"}, "a.example", "ssh"),
        ({"address": "10.0.0.1", "launcher": "local"}, "10.0.0.1", "local"),
    ],
)
def test_address_and_launcher_follow_from_each_other(keys, address, launcher):
    """A loopback address is this machine; an ssh node without address is reached by its name."""
    node = NodeConfig(name="a", **keys)
    assert (node.address, node.launcher) == (address, launcher)


@pytest.mark.parametrize(
    ("keys", "num_gpus", "slots"),
    [
        ({}, 0, 1),
        ({}, 4, 4),
        ({"slots": 2}, 4, 2),
        ({"devices": ()}, 4, 1),
        ({"devices": (0, 0, 1)}, 0, 3),
    ],
)
def test_slots(keys, num_gpus, slots):
    """Slots: as given, else one per device, else one per GPU, else one."""
    assert NodeConfig(name="a", **keys).resolved_slots(num_gpus) == slots


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("8GiB", 8 * 2**30), ("512MB", 512_000_000), ("1.5 GiB", 3 * 2**29), ("2000000", 2_000_000),
     ("2000000B", 2_000_000), ("2000KB", 2_000_000), ("1TiB", 2**40)],
)  # fmt: skip
def test_sizes(tmp_path: Path, text, num_bytes):
    """A size is read with decimal and binary units, or as plain bytes."""
    cluster = load(tmp_path, f"nodes: [{{name: a, memory_limit_bytes: {text}}}]")
    assert cluster.nodes[0].memory_limit_bytes == num_bytes


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path):
    """Each value has one source, and the strongest wins."""
    content = "job:\n  min_np: 2\n  max_np: 7\n  max_restarts: 5\nnodes: [{name: a, slots: 9}]\n"
    environment = {"HETERO_HVD_MIN_NP": "3", "HETERO_HVD_MAX_NP": "8", "HETERO_HVD_OUTPUT": ""}
    cluster = load(tmp_path, content, environment, min_np="4", balance=False, max_restarts=None)
    assert cluster.job == JobConfig(min_np=4, max_np=8, max_restarts=5, balance=False)
    sources = {name: cluster.sources[f"job.{name}"] for name in vars(cluster.job)}
    assert {name: source for name, source in sources.items() if source != "default"} == {
        "min_np": "flag",
        "max_np": "environment",
        "balance": "flag",
        "max_restarts": f"{cluster.where}:4",
    }


def test_problems_of_all_sources_are_listed_together(tmp_path: Path):
    """A wrong value is a problem even where a stronger one replaces it."""
    with pytest.raises(ConfigError) as caught:
        load(
            tmp_path,
            "nodes: [{name: a}]\njob: {min_np: -1}\n",
            {"HETERO_HVD_MAX_NP": "two", "HETERO_HVD_CHECK_STEPS": "x", "HETERO_HVD_MIN_PN": "2"},
            min_np="1",
            progress_seconds="soon",
        )
    advice = "did you mean HETERO_HVD_MIN_NP?"
    assert caught.value.problems == (
        f"{tmp_path}/nodes.yaml:2: job.min_np: found '-1', must be an integer of at least 1",
        "environment: HETERO_HVD_MAX_NP: found 'two', must be an integer of at least 1",
        "flag: --progress-seconds: found 'soon', must be a number above 0 and at most 1e+06",
        f"environment: HETERO_HVD_MIN_PN: there is no such variable; {advice}",
        "environment: HETERO_HVD_CHECK_STEPS: found 'x', must be an integer of at least 0",
    )


def test_a_job_that_discovers_nodes_may_begin_without_any(tmp_path: Path):
    """Then min_np may be what no entry can fulfil; without discover there must be a node."""
    settings = "discover: true, cluster_key_file: key, min_np: 3"
    assert load(tmp_path, f"nodes: []\njob: {{{settings}}}\n").nodes == ()
    with pytest.raises(ConfigError, match="nodes: found an empty list"):
        load(tmp_path, "nodes: []\njob: {cluster_key_file: key}\n")


def test_a_relation_is_reported_where_the_value_came_from(tmp_path: Path):
    """`--max-np 1` against the file's `min_np: 2` is the flag's problem."""
    content = "nodes: [{name: a}]\njob: {min_np: 2}\n"
    with pytest.raises(ConfigError, match=r"^flag: --max-np: found 1, must be at least min_np"):
        load(tmp_path, content, max_np="1")


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (JobConfig, {"min_np": 0}),
        (JobConfig, {"min_np": True}),
        (JobConfig, {"discover": True, "cluster_key_file": "key", "listen": 5353}),
        (JobConfig, {"start_timeout_seconds": float("nan")}),
        (NodeConfig, {"name": "a b"}),
        (NodeConfig, {"name": "a", "launcher": "rsh"}),
        (NodeConfig, {"name": "a", "env": {"A": 1}}),
        (EmulateConfig, {}),
        (ClusterConfig, {"nodes": ()}),
        (ClusterConfig, {"nodes": (NodeConfig(name="a"), NodeConfig(name="a"))}),
    ],
)
def test_settings_made_in_python_are_checked_too(section, values):
    """No instance with a value out of range exists, however it was made."""
    with pytest.raises(ConfigError):
        section(**values)


def test_listing_shows_everything_but_secrets(tmp_path: Path):
    """Every setting of the job and of each node is listed; values of env are not."""
    content = "nodes:\n  - name: a\n    env: {TOKEN: s3cret}\n    devices: []\n"
    rows = list(effective_settings(load(tmp_path, content)))
    assert {f"job.{setting.name}" for setting in JOB_SETTINGS} < {at for at, _, _ in rows}
    assert ("nodes[0].env", "{TOKEN: (set)}", f"{tmp_path}/nodes.yaml:3") in rows
    assert ("nodes[0].devices", "[]", f"{tmp_path}/nodes.yaml:4") in rows
    assert ("nodes[0].address", "127.0.0.1", "default") in rows
    assert "s3cret" not in str(rows)


def test_a_thousand_nodes_are_not_too_many(tmp_path: Path):
    """A file of a large cluster is well below the limit of size."""
    content = "nodes:\n" + "".join(f"- {{name: n{i}, slots: 8}}\n" for i in range(1000))
    assert len(load(tmp_path, content).nodes) == 1000


WORDS = st.sampled_from(
    [
        *"[]{}:,-?&*!|>'\"%@#~\n\t ",
        "nodes:",
        "job:",
        "name: a",
        "- ",
        "  ",
        "slots: ",
        "1",
        "1e9",
        "<<",
    ]
)


@given(
    prefix=st.integers(0, len(FULL)),
    noise=st.one_of(st.text(), st.lists(WORDS).map("".join)),
    suffix=st.integers(0, len(FULL)),
)
def test_whatever_the_file_holds_it_is_loaded_or_each_problem_names_it(prefix, noise, suffix):
    """No content, broken at random, ends in anything but settings or a list of problems."""
    content = (FULL[:prefix] + noise + FULL[suffix:]).encode("utf-8", "surrogatepass")
    problems: tuple[str, ...] = ()
    try:
        parse_cluster([(Path("F"), content)], environment={}, flags={})
    except ConfigError as error:
        problems = error.problems or ("an error without problems",)
    assert all(p.startswith("F:") and p.isprintable() for p in problems)
