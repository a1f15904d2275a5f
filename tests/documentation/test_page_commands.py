"""Every command of README.md and docs: read by its parser, and carried out where it can be here."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.commands import COMMANDS
from hetero_hvd.cli.parsing import parse, takes_a_script
from hetero_hvd.cli.settings import load
from hetero_hvd.cli.train.run import check_script
from hetero_hvd.errors import UserError
from tests.documentation import reader_folder
from tests.documentation.how_each_runs import ROWS, WORDS, Way, row_of
from tests.documentation.page_commands import HISTORY, PAGES, commands_of
from tests.kit.checkout import CHECKOUT, variables

COMMANDS_OF = {
    str(page.relative_to(CHECKOUT)): list(commands_of(page))
    for page in PAGES
    if page.name != HISTORY
}
OURS = [c for found in COMMANDS_OF.values() for c in found if c.words[0] == "hetero-hvd"]
OTHERS = [c for found in COMMANDS_OF.values() for c in found if c.words[0] != "hetero-hvd"]
TASKS = "docs/operations/tasks.md"
"""Whose commands tests/test_tasks.py carries out, with what each of them needs."""
NEEDS_SCRIPT = {name for name in COMMANDS if takes_a_script(name)} - {"benchmark", "doctor"}


def words_of(command):
    """Its words after the program, as they can be given here."""
    return [WORDS.get(word, word) for word in command.words[1:]]


def is_fragment(command):
    """Whether a sentence shows only a part: what it needs beside is missing."""
    if command.is_shown:
        return False
    try:
        arguments = parse(words_of(command))
    except UserError as error:
        return re.search(r"(is missing|needs a value)", error.lines[0]) is not None
    except SystemExit:
        return False
    return command.words[1] in NEEDS_SCRIPT and not arguments.command


def pages_with(*ways):
    """Each page with commands of ours that go one of these ways, and those commands."""

    def goes(command):
        row = None if command.is_a_name else row_of(command)
        return row is not None and row.way in ways and not is_fragment(command)

    pages = [page for page in COMMANDS_OF if page != TASKS]
    found = {page: [c for c in OURS if c.page == page and goes(c)] for page in pages}
    return [pytest.param(commands, id=page) for page, commands in found.items() if commands]


def test_every_command_has_a_row():
    """One that is new is put into the table, with how it is tried or why it is not."""
    commands = [*OURS, *OTHERS]
    found = [f"{c.place}: {c.text}" for c in commands if not c.is_a_name and row_of(c) is None]
    assert found == []
    assert len(commands) > 500
    assert {c.place.partition(":")[0] for c in commands if c.is_shown} >= {"README.md"}


def test_no_row_is_left_over():
    """Each is of a command that some page shows."""
    used = {row_of(c) for c in (*OURS, *OTHERS) if not c.is_a_name}
    assert [row.pattern for row in ROWS if row not in used] == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.why], ids=lambda row: row.pattern)
def test_each_reason_is_one(row):
    """The test that carries a command out is there; else it is said in words."""
    if row.way is not Way.ELSEWHERE:
        assert " " in row.why
        return
    assert (CHECKOUT / "tests" / row.why).is_file()


CASES = {
    "a block without a language": (
        "```\nhetero-hvd runs # all\nruns/x  digits\n```\n",
        ["hetero-hvd runs"],
    ),
    "a prompt": (
        "```\n$ whatever it is\nann$ hetero-hvd top\n```\n",
        ["whatever it is", "hetero-hvd top"],
    ),
    "a shell's block": ("```sh\nwhatever | tee x > y\n```\n", ["whatever", "tee x"]),
    "an indented block": ("Text:\n\n    hetero-hvd top\n", ["hetero-hvd top"]),
    "a block in a list": ("- one\n\n  ```\n  scripts/test --all\n  ```\n", ["scripts/test --all"]),
    "a sentence": ("Call `A=1 hetero-hvd run\n-q x.py` or `x run`.\n", ["hetero-hvd run -q x.py"]),
    "several": (
        "```\nhetero-hvd key && (hetero-hvd top; hetero-hvd hub &)\n```\n",
        ["hetero-hvd key", "hetero-hvd top", "hetero-hvd hub"],
    ),
    "continued": (
        "```\nhetero-hvd deploy slurm x \\\n  --pool 'a b:1'\n```\n",
        ["hetero-hvd deploy slurm x --pool a b:1"],
    ),
    "a program": ("```python\nhetero_hvd.Trainer()\n```\n", []),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES.keys())
def test_a_command_is_seen_wherever_it_stands(tmp_path, text, expected):
    """By its line, too."""
    (tmp_path / "page.md").write_text(text)
    found = list(commands_of(tmp_path / "page.md"))
    assert [command.text for command in found] == expected
    for command in found:
        line = text.splitlines()[int(command.place.partition(":")[2]) - 1]
        assert any(word in line for word in command.words)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What each page's folder is a copy of."""
    folder = tmp_path_factory.mktemp("reader") / "prepared"
    reader_folder.make(folder)
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
    """A folder of a page's own, the working directory; what is the user's is in it, too."""
    shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path / "here"


def why_not_understood(command):
    """What its parser has against it, or None."""
    if is_fragment(command) or command.words[1:2] in ((), ("COMMAND",)):
        return None
    try:
        arguments = parse(words_of(command))
        if command.words[1] in ("run", "trial") and not {"--slurm", "--ray"} & {*command.words}:
            nodes = load(arguments).current.nodes
            if row_of(command).way is Way.TRAINS:
                check_script(arguments.command, nodes)
    except UserError as error:
        return f"{command.place}: {command.text}: {error}"
    except SystemExit as ended:  # as by --version
        return f"{command.place}: {command.text}" if ended.code else None
    return None


@pytest.mark.usefixtures("folder")
def test_every_command_is_understood():
    """Each option and value; what a job is told are settings of one, and its script is there."""
    assert [why for command in OURS if (why := why_not_understood(command))] == []


def carry_out(command, capsys):
    """Why a command did not do what it should, or None."""
    code = main(words_of(command))
    printed = capsys.readouterr()
    if code or "Traceback" in printed.err:
        return f"{command.place}: {command.text}: exit code {code}: {printed.err.strip()}"
    return None


@pytest.mark.parametrize("commands", pages_with(Way.HERE))
@pytest.mark.usefixtures("folder")
def test_what_a_page_shows_works(commands, capsys):
    """In the order of the page, in one folder."""
    assert [why for command in commands if (why := carry_out(command, capsys))] == []


@pytest.mark.matrix
@pytest.mark.parametrize("commands", pages_with(Way.HERE, Way.SLOWLY))
@pytest.mark.usefixtures("folder")
def test_what_takes_longer_works_too(commands, capsys):
    """The whole page, with what starts processes, draws or simulates for seconds."""
    assert [why for command in commands if (why := carry_out(command, capsys))] == []


@pytest.mark.matrix
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("commands", pages_with(Way.TRAINS))
def test_what_a_page_trains_is_trained(commands, folder, capsys):
    """By two workers of a small script, each command once; tokens are made as the page does it."""
    made = [c for c in OURS if c.page == commands[0].page and c.words[1:2] == ("key",)]
    shown = [c for c in made if c.is_shown]
    assert [why for command in shown if (why := carry_out(command, capsys))] == []
    for command in commands:
        if any(c.text == command.text and c.place < command.place for c in OURS):
            continue
        done = subprocess.run(
            [sys.executable, "-m", "hetero_hvd", *words_of(command)],
            cwd=folder, env=variables(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])


@pytest.mark.matrix
@pytest.mark.parametrize(
    "command", [c for c in OTHERS if c.words[:2] == ("python", "-c")], ids=lambda c: c.place
)
def test_a_line_of_python_works(command, folder):
    """In an interpreter of its own."""
    subprocess.run([sys.executable, *command.words[1:]], cwd=folder, env=variables(), check=True)


class ParsedError(Exception):
    """The command line was taken; what follows would begin."""


def parse_args(self, *given):
    """In the place of argparse's: the same, and no more."""
    raise ParsedError(PARSE_ARGS(self, *given))


PARSE_ARGS = argparse.ArgumentParser.parse_args
NODE_METRICS = "hetero_hvd.probes.machine.node_metrics"
MAINS = {
    "scripts/bench": "benchmarks.__main__:_arguments",
    "scripts/chaos": "benchmarks.faults.chaos:main",
    "scripts/gpu-check": "gpu_check.__main__:arguments",
    "python -m benchmarks.faults": "benchmarks.faults.__main__:main",
    "python -m benchmarks.faults.recovery": "benchmarks.faults.recovery:main",
    f"python -m {NODE_METRICS}": f"{NODE_METRICS}:main",
}
"""What reads the words of a program of ours."""


def program_of(command):
    """That of `MAINS` which it calls, if any."""
    own = " ".join(command.words[: 3 if command.words[1:2] == ("-m",) else 1])
    return own if own in MAINS else None


@pytest.mark.parametrize(
    "command",
    [c for c in OTHERS if not c.is_a_name and program_of(c)],
    ids=lambda c: f"{c.place} {c.text[:40]}",
)
def test_programs_of_ours_take_their_words(command, monkeypatch):
    """`scripts/bench` and the like, modules that pages name: parts and options are known."""
    program = program_of(command)
    place, _, function = MAINS[program].partition(":")
    rest = words_of(command)[program.count(" ") :]
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(sys, "argv", [program, *rest])
    if "--help" in rest:
        with pytest.raises(SystemExit) as ended:
            getattr(importlib.import_module(place), function)()
        assert ended.value.code == 0
        return
    if function == "main":  # it would go on
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    with suppress(ParsedError):
        getattr(importlib.import_module(place), function)()


def wrong_in(words):
    """What a command of another program names that is not there."""
    if words[0].startswith(("scripts/", ".ci/")):
        path = CHECKOUT / words[0].split("NNNN")[0]
        yield from () if path.exists() else [words[0]]
        told = path.read_text() if path.is_file() else ""
        told += (CHECKOUT / "scripts" / "check").read_text() if path.name == "test" else ""
        if words[0] not in MAINS:
            yield from (word for word in words[1:] if word[:2] == "--" and word not in told)
    elif words[0] == "pytest":
        yield from (w for w in words if w.startswith("tests/") and not (CHECKOUT / w).exists())
    elif words[:2] == ["pip", "install"]:
        extras = {
            name
            for word in words
            for name in re.findall(r"\w+", "".join(re.findall(r"\[(.*)\]", word)))
        }
        yield from extras - EXTRAS
    elif words[:2] == ["python", "-m"] and words[2].startswith(("benchmarks", "hetero_hvd")):
        yield from () if importlib.util.find_spec(words[2]) else [words[2]]
    elif words[:2] == ["docker", "build"]:
        yield from () if (CHECKOUT / words[words.index("-f") + 1]).is_file() else ["Dockerfile"]


SETUP = ast.parse((CHECKOUT / "setup.py").read_text())
EXTRAS = {
    key.value
    for call in ast.walk(SETUP) if isinstance(call, ast.keyword) and call.arg == "extras_require"
    for key in call.value.keys
}  # fmt: skip


def test_what_other_programs_are_told_is_there():
    """Scripts with their options, tests, extras, modules, files of an image."""
    found = {f"{c.place}: {c.text}": list(wrong_in(list(c.words))) for c in OTHERS}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}
    assert {"train", "dev"} < EXTRAS
    assert [*wrong_in(["scripts/test", "--al"]), *wrong_in(["pip", "install", "x[trains]"])] != []
