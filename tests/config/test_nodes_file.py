"""The file of a running job is followed, and a broken edit changes nothing."""

from pathlib import Path

import pytest

from hetero_hvd.config import NodesFile
from hetero_hvd.errors import ConfigError

ONE = "nodes: [{name: a}]\n"
TWO = "nodes: [{name: a}, {name: b}]\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good file."""
    path = tmp_path / "nodes.yaml"
    path.write_text(ONE)
    return path


def names(file: NodesFile) -> list[str]:
    """Names of the nodes in force."""
    return [node.name for node in file.current.nodes]


def test_a_change_is_taken_over_once(path: Path):
    """New content is one change; reading it again is none."""
    file = NodesFile([path], {}, {})
    assert file.refresh() == "unchanged"
    path.write_text(TWO)
    assert file.refresh() == "changed"
    assert names(file) == ["a", "b"]
    assert file.refresh() == "unchanged"


def test_a_change_of_the_same_size_within_one_clock_tick_is_seen(path: Path):
    """The content decides, not the time stamp."""
    file = NodesFile([path], {}, {})
    path.write_text(ONE.replace("a", "z", 1).replace("z", "a").replace("name: a", "name: c"))
    assert file.refresh() == "changed"
    assert names(file) == ["c"]


def test_a_new_comment_is_no_change_but_lines_are_up_to_date(path: Path):
    """Workers are not disturbed by a comment."""
    file = NodesFile([path], {}, {})
    path.write_text("# one machine\n" + ONE)
    assert file.refresh() == "unchanged"
    assert file.current.sources["nodes[0].name"] == f"{path}:2"


@pytest.mark.parametrize("broken", ["", "nodes: [", "nodes: [{name: a, slots: x}]", None])
def test_a_broken_edit_is_refused_once_and_the_old_settings_stay(path: Path, broken):
    """The reason is given once, not at each tick; the next good content is taken over."""
    file = NodesFile([path], {}, {})
    before = file.current
    path.unlink()
    if broken is not None:
        path.write_text(broken)
    error = file.refresh()
    assert isinstance(error, ConfigError)
    assert all(problem.startswith(str(path)) for problem in error.problems)
    assert file.refresh() == "unchanged"
    assert file.current is before
    path.write_text(ONE)
    assert file.refresh() == "unchanged"
    path.write_text(TWO)
    assert file.refresh() == "changed"


def test_flags_stay_in_force(path: Path):
    """What the job was started with beats the file after a change, too."""
    file = NodesFile([path], {"HETERO_HVD_MAX_NP": "5"}, {"min_np": "1"})
    path.write_text(TWO + "job: {max_np: 9, min_np: 2}\n")
    assert file.refresh() == "changed"
    assert (file.current.job.min_np, file.current.job.max_np) == (1, 5)


def test_a_typo_in_the_environment_counts_at_the_start_only(path: Path):
    """A job that runs is not told of what its process's environment has become since."""
    environment = {"HETERO_HVD_MIN_NP": "1"}
    file = NodesFile([path], environment, {})
    environment["HETERO_HVD_MIN_PN"] = "2"
    path.write_text(TWO)
    assert file.refresh() == "changed"
    with pytest.raises(ConfigError, match="did you mean HETERO_HVD_MIN_NP"):
        NodesFile([path], environment, {})


def test_a_first_file_that_is_wrong_raises(path: Path):
    """There is no job without settings."""
    path.write_text("nodes: 3\n")
    with pytest.raises(ConfigError):
        NodesFile([path], {}, {})


GRANTED = '{"nodes": [{"name": "x", "slots": 1}, {"name": "y", "slots": 1}]}'


def test_nodes_that_are_granted_are_followed_down_to_none(path: Path):
    """The file says more of them and lists none; min_np may wait for others."""
    path.write_text("job: {min_np: 3}\nnodes: [{name: y, price_per_hour: 2}, {name: a}]\n")
    now = [GRANTED]
    file = NodesFile([path], {}, {}, granted=lambda: bytes(now[0], "ascii"))
    assert [(n.name, n.price_per_hour) for n in file.current.nodes] == [("x", None), ("y", 2.0)]
    assert file.refresh() == "unchanged"
    now[0] = '{"nodes": []}'
    assert file.refresh() == "changed"
    assert (names(file), file.current.may_grow) == ([], True)
    now[0] = GRANTED
    assert file.refresh() == "changed"
    assert names(file) == ["x", "y"]


def test_what_was_granted_once_must_be_enough(path: Path):
    """Nothing else is to come."""
    path.write_text("job: {min_np: 3}\nnodes: []\n")
    with pytest.raises(ConfigError, match="min_np: found 3, must be at most 2"):
        NodesFile([path], {}, {}, granted=GRANTED.encode())


WRONG_LISTS = {
    "a text": ("nodes: all\n", "1: nodes: found 'all', must be a list"),
    "a mapping": ("nodes: {x: {slots: 1}}\n", "1: nodes: found a mapping, must be a list"),
    "an entry without a name": ("nodes: [{nam: x}]\n", "1: nodes[0].nam: unknown key; nearest"),
    "a text for an entry": ("nodes: [x]\n", "1: nodes[0]: found 'x', must be a mapping"),
    "a node twice": ("nodes:\n- {name: x}\n- {name: x}\n", "3: nodes[1].name: found 'x', which"),
    "two lists": ("nodes: [{name: x}]\nnodes: [{name: y}]\n", "2: nodes: given twice, first in"),
}


@pytest.mark.parametrize("case", WRONG_LISTS)
def test_a_wrong_list_is_refused_also_where_nodes_are_granted(path: Path, case):
    """What it says of a node would else count for nothing, and nobody would be told."""
    content, expected = WRONG_LISTS[case]
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        NodesFile([path], {}, {}, granted=GRANTED.encode())
    assert caught.value.problems[0].startswith(f"{path}:{expected}")
