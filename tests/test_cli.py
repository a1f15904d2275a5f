"""The command line as a person meets it."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.parsing import whole_parser
from hetero_hvd.cli.train.run import check_traced
from hetero_hvd.config import JOB_SETTINGS, ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.config.paths import some_path
from hetero_hvd.errors import JobError

NONE_TO_ASK = (
    "agent.yaml has no node that is this machine or that ssh reaches, and 'hetero-hvd {0} -f' asks "
    "those alone; of agents see 'hetero-hvd nodes --discover', or call 'hetero-hvd {0}' on the "
    "node itself"
)
NODES = """\
nodes:
  - {name: a, slots: 2}
  - {name: b, env: {TOKEN: s3cret}, devices: []}
  - {name: c, address: 10.0.0.2, slots: 4, user: train}
  - {name: d, address: 10.0.0.2, slots: 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a nodes.yaml, the working directory."""
    (tmp_path / "nodes.yaml").write_text(NODES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_discover_prints_horovods_format(capsys):
    """Local nodes are one host to Horovod, and so are ssh nodes with one address."""
    assert main(["nodes", "hosts"]) == 0
    assert capsys.readouterr().out == "localhost:3\n10.0.0.2:5\n"


def test_horovods_own_discovery_reads_it(folder: Path):
    """Horovod 0.28.1, given the command as its script, finds those hosts and slots."""
    discovery = pytest.importorskip("horovod.runner.elastic.discovery")
    script = f"{sys.executable} -m hetero_hvd nodes hosts -f {folder / 'nodes.yaml'}"
    found = discovery.HostDiscoveryScript(script, None).find_available_hosts_and_slots()
    assert found == {"localhost": 3, "10.0.0.2": 5}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("{name: a, address: b}", "nodes[0].slots: Horovod's discovery needs a number"),
        (
            "{name: a, launcher: agent, identity_file: key}",
            "nodes[0].slots: Horovod's discovery needs a number",
        ),
        ("{name: a, address: 'fd00::1', slots: 1}", "nodes[0].address: found 'fd00::1'"),
    ],
)
def test_discover_refuses_what_horovod_cannot_read(folder: Path, capsys, node, message):
    """Horovod would fail later, with a traceback."""
    (folder / "nodes.yaml").write_text(f"nodes: [{node}]")
    assert main(["discover"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"hetero-hvd: {message}")


@pytest.mark.usefixtures("folder")
def test_nodes_as_json(capsys):
    """Everything about the nodes but the values of their environment."""
    assert main(["nodes", "--json"]) == 0
    text = capsys.readouterr().out
    nodes = json.loads(text)
    assert [(n["name"], n["launcher"], n["slots"]) for n in nodes] == [
        ("a", "local", 2),
        ("b", "local", 1),
        ("c", "ssh", 4),
        ("d", "ssh", 1),
    ]
    assert nodes[1]["env"] == ["TOKEN"]
    assert "s3cret" not in text


@pytest.mark.usefixtures("folder")
def test_nodes_as_a_table(capsys):
    """A row for each node."""
    assert main(["nodes"]) == 0
    text = capsys.readouterr().out
    assert "train@10.0.0.2" in text
    assert "CPU only" in text
    assert "s3cret" not in text


@pytest.mark.usefixtures("folder")
def test_config_says_where_each_value_came_from(capsys, monkeypatch):
    """Flag, environment, file and line, or default."""
    monkeypatch.setenv("HETERO_HVD_MAX_NP", "6")
    assert main(["config", "--min-np", "2", "--no-balance"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["job.min_np"] == ["2", "flag"]
    assert rows["job.balance"] == ["false", "flag"]
    assert rows["job.max_np"] == ["6", "environment"]
    assert rows["nodes[2].slots"] == ["4", "nodes.yaml:4"]
    assert rows["job.max_restarts"] == ["3", "default"]
    assert "s3cret" not in text


@pytest.mark.usefixtures("folder")
def test_config_for_programs(capsys):
    """The same rows as for people."""
    assert main(["config", "--min-np", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["config", "--min-np", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"setting": "job.min_np", "value": "2", "source": "flag"} in rows
    assert [line.split() for line in lines] == [" ".join(row.values()).split() for row in rows]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", [["config"], ["nodes"], ["run", "--", "train.py"], ["benchmark"]])
def test_a_variable_with_a_typo_is_one_line(capsys, monkeypatch, words):
    """Whichever command reads the settings; not where one of ours sets it for a worker."""
    monkeypatch.setenv("HETERO_HVD_WORKER", "alpha:0")
    monkeypatch.setenv("HETERO_HVD_MIN_PN", "2")
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "hetero-hvd: environment: HETERO_HVD_MIN_PN: there is no such variable; did you mean "
        "HETERO_HVD_MIN_NP?\n"
    )


NO_GOAL = (
    "argument --for: found 'sped', must be one of speed, money, energy; did you mean speed? "
    "(see hetero-hvd advise --help)"
)
ONLY_SOME = (
    "only 'run', 'trial', 'submit', 'doctor', 'benchmark' and 'deploy' take a command after --"
)
NO_TAG = (
    "argument --tag: 'lr': must be NAME=VALUE on one line, the name of letters, digits and '_' "
    "(see hetero-hvd run --help)"
)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([], ["COMMAND is missing (see hetero-hvd --help)"]),
        (["run"], ["no command: hetero-hvd run [options] train.py [arguments]"]),
        (["run", "--"], ["no command: hetero-hvd run [options] train.py [arguments]"]),
        (["nodes", "--", "x"], [ONLY_SOME]),
        (["nodes", "--jsn"], ["unknown option --jsn; did you mean --json?"]),
        (["nodes", "--zzz"], ["unknown option --zzz; see hetero-hvd nodes --help"]),
        (["nodes", "x"], ["'x' is too much; see hetero-hvd nodes --help"]),
        (["nodes", "-f", "none.yaml"], ["none.yaml: no such file"]),
        (["rnu", "--", "train.py"], ["'rnu' is no command; did you mean run?"]),
        (["train.py"], ["'train.py' is no command; did you mean hetero-hvd run train.py?"]),
        (
            ["run", "x.py", "--min-np", "3"],
            ["x.py: no such file in FOLDER, where a runs it"],
        ),
        (
            ["run", "-f", "nodes.yaml", "train.py", "--", "x"],
            ["train.py: no such file in FOLDER, where a runs it; did you mean tran.py?"],
        ),
        (
            ["benchmark", "-f", "nodes.yaml", "train.py"],
            ["train.py: no such file in FOLDER, where a runs it; did you mean tran.py?"],
        ),
        (
            ["deploy", "compose", "out", "x.py", "--image", "y"],
            [
                "'x.py': put -- before the script: hetero-hvd deploy [options] -- x.py",
            ],
        ),
        (
            ["run", "-np", "2", "--", "train.py"],
            ["unknown option -np: the slots of nodes.yaml say where workers run"],
        ),
        (
            ["run", "-H", "a:2", "--", "train.py"],
            ["unknown option -H: the nodes of nodes.yaml say where workers run"],
        ),
        (
            ["run", "-f"],
            ["argument -f/--nodes-file: needs a value (see hetero-hvd run --help)"],
        ),
        (["install", "cc"], ["cc is no node of nodes.yaml; did you mean c?"]),
        (["install", "c", "zeta"], ["zeta is no node of nodes.yaml; there are a, b, c, d"]),
        (["install", "a"], ["a: is this machine, which has its own environment"]),
        (
            ["install", "-f", "local.yaml"],
            ["local.yaml has no node with launcher ssh: nothing to install"],
        ),
        (
            ["install", "-f", "agent.yaml", "f"],
            ["f: has launcher agent, and install needs ssh; pip can install there"],
        ),
        (
            ["doctor", "--", "tran.py"],
            ["a script is looked for on nodes: hetero-hvd doctor -f nodes.yaml -- ..."],
        ),
        (
            ["doctor", "-f", "nodes.yaml", "--timeout", "1"],
            ["--timeout: found 1, must be from 5 to 3600"],
        ),
        (
            ["doctor", "-f", "agent.yaml"],
            [NONE_TO_ASK.format("doctor")],
        ),
        (["hardware", "-f", "agent.yaml"], [NONE_TO_ASK.format("hardware")]),
        (["doctor", "--timeout", "nan"], ["--timeout: found nan, must be from 5 to 3600"]),
        (["hardware", "--timeout", "nan"], ["--timeout: found nan, must be from 5 to 3600"]),
        (["top", "--interval", "nan"], ["--interval: found nan, must be from 0.1 to 3600"]),
        (["simulate", "--coupling", "nan"], ["--coupling must be >= 0"]),
        (["config", "-f", "no\nfile.yaml"], ["no\\nfile.yaml: no such file"]),
        (["nodes", "-f", "no\u2028file"], ["no\\u2028file: no such file"]),
        (["doctor", "-f", "none.yaml"], ["none.yaml: no such file"]),
        (
            ["doctor", "-f", "remote.yaml", "--", "train.py"],
            ["train.py: No such file or directory here, so it cannot be compared"],
        ),
        (
            ["doctor", "-f", "remote.yaml", "--", "train.py", 5000 * "x"],
            ["train.py: No such file or directory here, so it cannot be compared"],
        ),
        (["drain"], ["NODE[:SLOT] is missing (see hetero-hvd drain --help)"]),
        (
            ["trace", "--steps", "many"],
            ["argument --steps: found 'many', must be an integer (see hetero-hvd trace --help)"],
        ),
        (
            ["top", "--interval", "soon"],
            ["argument --interval: found 'soon', must be a number (see hetero-hvd top --help)"],
        ),
        (
            ["advise", "--for", "sped"],
            [
                NO_GOAL,
            ],
        ),
        (
            ["top", "--once=yes"],
            ["argument --once: found 'yes', takes no value (see hetero-hvd top --help)"],
        ),
        (["--jsn"], ["unknown option --jsn (see hetero-hvd --help)"]),
        (["zzz"], ["'zzz' is no command; hetero-hvd --help lists them"]),
        (
            ["run", "--", "-m", "package.train"],
            ["after -- comes a script or a program: python -m package.train, say"],
        ),
        (
            ["run", "--", "train.py"],
            ["train.py: no such file in FOLDER, where a runs it; did you mean tran.py?"],
        ),
        (
            ["run", "--", "tran"],
            ["tran: no such program in FOLDER, where a runs it; did you mean tran.py?"],
        ),
        (
            ["run", "--min-np", "x", "--max-np=0", "--", "train.py"],
            [
                "flag: --min-np: found 'x', must be an integer of at least 1",
                "flag: --max-np: found '0', must be an integer of at least 1",
            ],
        ),
        (["run", "--tag", "lr", "--", "tran.py"], [NO_TAG]),
    ],
)
def test_wrong_input_is_one_line_per_problem_and_exit_code_2(folder: Path, capsys, words, lines):
    """What is wrong and what was probably meant; no traceback, nothing on standard output."""
    (folder / "tran.py").touch()
    (folder / "local.yaml").write_text("nodes: [{name: e}]")
    (folder / "remote.yaml").write_text("nodes: [{name: g, address: 10.0.0.2}]")
    (folder / "agent.yaml").write_text("nodes: [{name: f, launcher: agent, identity_file: k}]")
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    found = printed.err.replace(str(folder), "FOLDER").splitlines()
    assert found == [f"hetero-hvd: {line}" for line in lines]


def paths_of(parser, *words):
    """Words before each path that a command takes, and what argparse calls it there."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from paths_of(command, *words, name)
            continue
        (flag, *_) = action.option_strings or [""]
        is_path = action.metavar in {"FILE", "PATH", "DIR"} or action.type is some_path
        if (is_path or flag.endswith("-file")) and action.dest not in SETTINGS:
            names = "/".join(action.option_strings) or action.metavar or action.dest
            yield [*words, flag] if flag else list(words), names


SETTINGS = {setting.name for setting in JOB_SETTINGS}
"""Of the job: an empty one is not given, as in the environment."""
PATHS = {" ".join(words): (words, names) for words, names in paths_of(whole_parser())}


@pytest.mark.parametrize("case", PATHS)
def test_no_path_is_the_working_directory_by_mistake(case, capsys):
    """As of a shell's variable that is not set; nothing is read or written."""
    words, names = PATHS[case]
    assert main([*words, ""]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"argument {names}: found '', must be a path" in line


def test_every_command_with_paths_is_looked_at():
    """No option is passed over."""
    assert len(PATHS) > 25
    assert {"agent --token-file", "run -f", "deploy slurm", "key"} <= PATHS.keys()


NO_FILE = {
    "run": (["run", "--discover", "--", "train.py"], "k: the cluster key cannot be read"),
    "no key": (
        ["run", "--discover", "--", "x"],
        "hetero-hvd: job.cluster_key_file: found none, must be given with discover",
    ),
    "a wrong flag": (
        ["config", "--discover", "--cluster-key-file", "k", "--min-np", "0"],
        "hetero-hvd: flag: --min-np: found '0'",
    ),
    "nodes": (["nodes", "--discover"], "hetero-hvd: job.cluster_key_file: found none"),
    "config": (["config", "--discover", "--cluster-key-file", "k"], ""),
    "bench-comm": (["bench-comm", "--discover", "--ops", "x"], "--ops"),
    "not asked for": (["config"], "nodes.yaml: no such file"),
    "named": (["config", "--discover", "-f", "nodes.yaml"], "nodes.yaml: no such file"),
}


@pytest.mark.parametrize("case", NO_FILE)
def test_who_looks_for_nodes_that_announce_themselves_needs_no_file(
    tmp_path, monkeypatch, capsys, case
):
    """Nobody has a node to list; a file that is named has to be there."""
    monkeypatch.chdir(tmp_path)
    words, expected = NO_FILE[case]
    if case == "run":
        words = [*words[:2], "--cluster-key-file", "k", *words[2:]]
    assert main(words) == (2 if expected else 0)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", [["tran.py"], ["python", "tran.py"], ["python3.11", "tran.py"]])
def test_a_mistyped_script_is_found_before_anything_is_started(folder: Path, capsys, command):
    """The message says where it was looked for."""
    assert main(["run", "--", *command, "--epochs", "3"]) == 2
    expected = f"hetero-hvd: tran.py: no such file in {folder}, where a runs it\n"
    assert capsys.readouterr().err == expected


TRACED = {
    "alpha:0": "",
    "alpha:1,beta:7": "",
    "gamma:0": "found gamma:0",
    "alpha:0,alpha:2": "found alpha:2",
    "beta:0,one:1": "found one:1",
}


@pytest.mark.parametrize("workers", TRACED)
@pytest.mark.parametrize("grows", [False, True])
def test_a_mistyped_worker_to_trace_is_found_before_anything_is_started(workers, grows):
    """Where all nodes are listed; those known are named."""
    nodes = (
        NodeConfig(name="alpha", slots=2),
        NodeConfig(name="beta"),
        NodeConfig(name="one", slots=1),
    )
    job = JobConfig(trace_workers=workers)
    if grows or not TRACED[workers]:
        check_traced(ClusterConfig(job=job, nodes=nodes, follows_lender=grows))
        return
    with pytest.raises(JobError) as error:
        check_traced(ClusterConfig(job=job, nodes=nodes, follows_lender=grows))
    there = "must be of alpha:0 to 1, beta:SLOT, one:0"
    assert str(error.value) == f"job.trace_workers: {TRACED[workers]}, {there}"


def test_a_script_is_looked_for_in_the_nodes_directory(folder: Path, capsys):
    """A node with its own directory has its own train.py."""
    (folder / "train.py").touch()
    (folder / "nodes.yaml").write_text("nodes: [{name: a, directory: other}]")
    assert main(["run", "--", "train.py"]) == 2
    expected = f"hetero-hvd: train.py: no such file in {folder}/other, where a runs it\n"
    assert capsys.readouterr().err == expected


def test_doctor(capsys):
    """The exit code says whether this machine can train, and JSON holds the same."""
    code = main(["doctor", "--json"])
    assert code in {0, 1}
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["fits"]["whole"] <= found["fits"]["in_parts"]
    assert found["fits"]["smallest"].startswith("here:")


def test_help_and_listings_need_neither_horovod_nor_torch():
    """A laptop that only looks at a cluster needs no training installation."""
    code = (
        "import sys; from hetero_hvd.cli import main; code = main(['config', '-f', sys.argv[1]]);"
        "sys.exit(code or sorted({'torch', 'horovod', 'rich'} & set(sys.modules)) or 0)"
    )
    shipped = Path(__file__).parents[1] / "nodes.yaml"
    run = subprocess.run([sys.executable, "-c", code, shipped], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_reader_that_stops_reading_is_no_failure(folder: Path):
    """`hetero-hvd config | head -1` ends without a traceback."""
    nodes = "".join(f"- {{name: n{i}}}\n" for i in range(300))
    (folder / "nodes.yaml").write_text("nodes:\n" + nodes)
    with subprocess.Popen(
        [sys.executable, "-m", "hetero_hvd", "config"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_no_fault(tmp_path, closed):
    """No file that is opened gets their numbers, and nothing fails because there is nowhere."""
    script = (
        'import os, sys; from hetero_hvd.cli import main; code = main(["runs"]); '
        f'opened = open("{tmp_path}/next", "w"); sys.exit(code != 2 or opened.fileno() < 3)'
    )
    line = f"exec {sys.executable} -c '{script}' {closed}"
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path, check=False).returncode == 0
