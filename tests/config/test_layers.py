"""Several files as one: `-f base.yaml -f prod.yaml`."""

import pytest

from hetero_hvd.config import load_cluster
from hetero_hvd.config.nodes_file import NodesFile
from hetero_hvd.errors import ConfigError

BASE = """\
job: {min_np: 1, max_restarts: 5}
nodes:
  - {name: a, slots: 2, env: {LR: "1", MODE: x}}
  - {name: b, slots: 1, devices: [0]}
"""

MERGED = {
    "nothing": ("", {}),
    "a comment": ("# nothing\n", {}),
    "a setting": ("job: {min_np: 2}\n", {"job.min_np": 2, "job.max_restarts": 5}),
    "another setting": ("job: {rule: static}\n", {"job.rule": "static", "job.min_np": 1}),
    "a setting taken back": ("job: {max_restarts: }\n", {"job.max_restarts": 3}),
    "a section taken back": ("job:\n", {"job.min_np": 1, "job.max_restarts": 3}),
    "a node's setting": (
        "nodes: [{name: a, slots: 4}]\n",
        {"nodes.a.slots": 4, "nodes.a.env": {"LR": "1", "MODE": "x"}, "nodes.b.slots": 1},
    ),
    "a node's variable": (
        "nodes: [{name: a, env: {LR: '2', NEW: y}}]\n",
        {"nodes.a.env": {"LR": "2", "MODE": "x", "NEW": "y"}},
    ),
    "a node's variable taken back": (
        "nodes: [{name: a, env: {LR: ~, MODE: y}}]\n",
        {"nodes.a.env": {"MODE": "y"}},
    ),
    "all of them taken back": ("nodes: [{name: a, env: ~}]\n", {"nodes.a.env": {}}),
    "a list": ("nodes: [{name: b, devices: [1]}]\n", {"nodes.b.devices": (1,)}),
    "one more node": ("nodes: [{name: c, slots: 3}]\n", {"nodes.c.slots": 3, "nodes.a.slots": 2}),
    "a new section": ("guard: {}\n", {"guard.for_seconds": 60.0}),
}


def value_of(cluster, place):
    """`job.NAME`, `nodes.NAME.NAME`."""
    first, *names = place.split(".")
    found = getattr(cluster, first)
    if first == "nodes":
        (found,) = (node for node in found if node.name == names[0])
        names = names[1:]
    for name in names:
        found = getattr(found, name)
    return found


def write(folder, *contents):
    """The files, weakest first."""
    paths = [folder / f"{number}.yaml" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    return paths


@pytest.mark.parametrize("case", MERGED)
def test_a_later_file_changes_and_adds(case, tmp_path):
    """Settings by key, nodes by name; the rest takes the place of what was there."""
    content, expected = MERGED[case]
    cluster = load_cluster(*write(tmp_path, BASE, content), environment={}, flags={})
    assert {place: value_of(cluster, place) for place in expected} == expected
    assert [node.name for node in cluster.nodes][:2] == ["a", "b"]


def test_three_files_the_environment_and_a_flag(tmp_path):
    """Each stronger than those before it; each value knows where it came from."""
    paths = write(tmp_path, BASE, "job:\n  min_np: 2\n  max_np: 8\n", "job: {max_np: 9}\n")
    cluster = load_cluster(
        *paths, environment={"HETERO_HVD_MAX_RESTARTS": "7"}, flags={"min_np": "3"}
    )
    assert (cluster.job.min_np, cluster.job.max_np, cluster.job.max_restarts) == (3, 9, 7)
    assert cluster.sources["job.max_np"] == f"{paths[2]}:1"
    assert cluster.sources["nodes[0].slots"] == f"{paths[0]}:3"
    assert cluster.where == " and ".join(map(str, paths))


WRONG = {
    "a wrong value below": ("job: {min_np: x}\n" + BASE.partition("\n")[2], "", "0.yaml:1: job"),
    "a wrong value above": (BASE, "\njob: {min_np: x}\n", "1.yaml:2: job.min_np: found 'x'"),
    "a wrong key above": (BASE, "jobs: {}\n", "1.yaml:1: jobs: unknown key; nearest"),
    "a wrong key of a node": (BASE, "nodes:\n- {name: a, slot: 1}\n", "1.yaml:2: nodes[0].slot:"),
    "a key twice above": (BASE, "job: {}\njob: {}\n", "1.yaml:2: job: given twice"),
    "a node twice above": (
        BASE,
        "nodes: [{name: a}, {name: a}]\n",
        "1.yaml:1: nodes[2].name: found 'a', which is also nodes[0].name",
    ),
    "a node without a name": (BASE, "nodes: [{slots: 1}]\n", "1.yaml:1: nodes[2].name: is missing"),
    "a list below": ("- {name: a}\n", BASE, "1.yaml:1: found a mapping, but "),
    "a text below": ("hello\n", BASE, "1.yaml:1: found a mapping, but "),
    "another kind of job below": ("job: 5\n", BASE, "1.yaml:1: job: found a mapping, but "),
    "another kind of guard below": (
        f"guard: x\n{BASE}",
        "guard: {}\n",
        "1.yaml:1: guard: found a mapping, but ",
    ),
    "another kind of nodes below": ("nodes: {a: 1}\n", BASE, "1.yaml:3: nodes: found a list, but "),
    "another kind of a node's key below": (
        "nodes: [{name: a, emulate: 5}]\n",
        "nodes: [{name: a, emulate: {relative_speed: 0.5}}]\n",
        "1.yaml:1: nodes[0].emulate: found a mapping, but ",
    ),
    "a key twice below": (
        f"job: {{}}\n{BASE}",
        "job: {}\n",
        "0.yaml:2: job: given twice, first in",
    ),
    "a node's key twice below": (
        "nodes:\n- name: b\n- name: a\n  slots: 1\n  slots: 2\n",
        "nodes: [{name: a, slots: 3}]\n",
        "0.yaml:5: nodes[1].slots: given twice, first in line 4",
    ),
    "a node twice below": (
        "nodes: [{name: a}, {name: a}]\n",
        "nodes: [{name: a, slots: 3}]\n",
        "0.yaml:1: nodes[1].name: found 'a', which is also nodes[0].name",
    ),
    "a variable that nobody has": (
        BASE,
        "nodes: [{name: a, env: {NEW: null}}]\n",
        "1.yaml:1: nodes[0].env.NEW: found null, which only takes away what an earlier file has;",
    ),
    "one taken back and given": (
        BASE,
        "nodes: [{name: a, env: {LR: ~, LR: '2'}}]\n",
        "1.yaml:1: nodes[0].env.LR: given twice",
    ),
    "another kind": (BASE, "nodes: {}\n", "1.yaml:1: nodes: found a mapping"),
    "no node at all": ("", "job: {}\n", "1.yaml:1: nodes: is missing"),
    "all empty": ("", "", "1.yaml: is empty; key 'nodes' is missing"),
    "no YAML": (BASE, "job: [\n", "1.yaml:2: "),
    "no mapping": (BASE, "- 1\n", "1.yaml:1: found a list"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_problem_names_the_file_and_the_line(case, tmp_path):
    """That it stands in."""
    *contents, expected = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        load_cluster(*write(tmp_path, *contents), environment={}, flags={})
    assert str(tmp_path / expected) in caught.value.problems[0], caught.value.problems


@pytest.mark.parametrize("value", ["null", "~", ""])
def test_what_was_taken_back_may_be_given_again(value, tmp_path):
    """In any kind: only two kinds in two files cannot both be right."""
    paths = write(tmp_path, BASE, f"job: {value}\n", "job: {min_np: 2}\n")
    assert load_cluster(*paths, environment={}, flags={}).job.min_np == 2


TEXTS = {"env": "local", "ssh_options": "ssh", "srun_options": "srun"}


@pytest.mark.parametrize("nothing", ["null", "Null", "~"])
@pytest.mark.parametrize("key", TEXTS)
def test_nothing_is_no_text(key, nothing, tmp_path):
    """It takes away what an earlier file has, and may be given again; by itself it is refused."""
    node = f"nodes: [{{name: a, launcher: {TEXTS[key]}, {key}: {{a: %s, b: x}}}}]\n"
    paths = write(tmp_path, node % "'null'", node % nothing, node % "y")
    for number, expected in ((1, {"a": "null"}), (2, {}), (3, {"a": "y"})):
        (found,) = load_cluster(*paths[:number], environment={}, flags={}).nodes
        assert getattr(found, key) == {"b": "x"} | expected
    with pytest.raises(ConfigError) as caught:
        load_cluster(paths[1], environment={}, flags={})
    (problem,) = caught.value.problems
    assert problem == (
        f"{paths[1]}:1: nodes[0].{key}.a: found {nothing}, which only takes away what an earlier "
        f"file has; quote it: '{nothing}'"
    )


def test_an_empty_text_is_one_in_a_later_file_too(tmp_path):
    """As it is written."""
    paths = write(tmp_path, BASE, "nodes: [{name: a, env: {LR: }}]\n")
    assert load_cluster(*paths, environment={}, flags={}).nodes[0].env == {"LR": "", "MODE": "x"}


def test_a_secret_of_another_kind_is_not_shown(tmp_path):
    """As elsewhere."""
    paths = write(tmp_path, BASE, "nodes: [{name: a, env: TOKEN=abcdef}]\n")
    with pytest.raises(ConfigError) as caught:
        load_cluster(*paths, environment={}, flags={})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{paths[1]}:1: nodes[0].env: found a text, but ")
    assert "abcdef" not in problem


def test_problems_come_in_the_order_of_the_files(tmp_path):
    """The environment's last."""
    paths = write(tmp_path, "\n\n\njob: {min_np: x}\nnodes: [{name: a}]\n", "job: {max_np: y}\n")
    with pytest.raises(ConfigError) as caught:
        load_cluster(*paths, environment={"HETERO_HVD_OUPUT": "x"}, flags={})
    places = [problem.split(": ")[0] for problem in caught.value.problems]
    assert places == [f"{paths[0]}:4", f"{paths[1]}:1", "environment"]


def test_any_of_the_files_of_a_running_job_may_change(tmp_path):
    """A broken one changes nothing."""
    base, more = write(tmp_path, BASE, "job: {min_np: 2}\n")
    file = NodesFile([base, more], {}, {})
    more.write_text("job: {min_np: 3}\n")
    assert file.refresh() == "changed"
    base.write_text(BASE.replace("slots: 2", "slots: 4"))
    assert file.refresh() == "changed"
    assert (file.current.job.min_np, file.current.nodes[0].slots) == (3, 4)
    more.unlink()
    assert isinstance(file.refresh(), ConfigError)
    assert file.refresh() == "unchanged"
    assert file.current.job.min_np == 3
