"""All commands alike: what each has to have, asked of the real parser, and completion by tab."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import hetero_hvd
from hetero_hvd import cli
from hetero_hvd.cli import main
from hetero_hvd.cli.commands import ALIASES, COMMANDS, GROUPS, module_of
from hetero_hvd.cli.commands_page import reference
from hetero_hvd.cli.completion import PREAMBLE
from hetero_hvd.cli.parsing import SHELLS, options_of, parse, parser_of, whole_parser
from tests.kit.screens.terminal import OnTerminal

MAX_COMMANDS = 24
LISTS = {
    "advise", "compare", "config", "cost", "nodes", "queue", "record", "report", "runs", "top",
    "benchmark", "doctor", "nodes hardware", "simulate",
}  # fmt: skip
"""What prints more than what it did; `nodes hosts` has Horovod's own form."""


def test_every_command_can_be_called(capsys):
    """Each module of the rooms that acts is registered, and has a page of help."""
    rooms = pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")
    modules = [importlib.import_module(found.name) for found in rooms]
    assert {m for m in modules if hasattr(m, "act")} == set(map(module_of, COMMANDS))
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), "--help"])
        assert ended.value.code == 0
        assert f"usage: hetero-hvd {name}" in capsys.readouterr().out


def test_there_are_few_commands_in_groups():
    """One list that a person reads; what stands beside another command is found there."""
    assert len([name for name in COMMANDS if " " not in name]) <= MAX_COMMANDS
    assert all(2 < len(group) < 12 for group in GROUPS.values())
    assert all(name.split()[0] in COMMANDS for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_with_an_example(name, tmp_path, monkeypatch):
    """The example is taken by the parser, and is about that command."""
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[name]
    assert command.summary[0].islower()
    assert not command.summary.endswith(".")
    text = parser_of(name).format_help()
    assert f"example:\n  hetero-hvd {command.example}" in text
    words = shlex.split(command.example)
    assert " ".join(words).startswith(name)
    assert callable(parse(words).act)
    assert ("--json" in options_of(parser_of(name))) == (name in LISTS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name):
    """Whoever asks for help reads what each is for."""
    actions = parser_of(name)._actions
    assert [action.option_strings or action.dest for action in actions if not action.help] == []


def test_the_page_follows_from_the_code():
    """`scripts/pages` writes it anew."""
    page = Path(hetero_hvd.__file__).parents[1] / "docs" / "reference" / "commands.md"
    assert page.read_text() == reference()


@pytest.mark.parametrize("alias", ALIASES)
def test_former_names_go_on_to_work(alias, capsys):
    """They are the command that took their place."""
    with pytest.raises(SystemExit):
        main([alias, "--help"])
    assert f"usage: hetero-hvd {' '.join(ALIASES[alias])}" in capsys.readouterr().out


SCRIPTS = {
    "run train.py": ("train.py",),
    "run train.py --epochs 3": ("train.py", "--epochs", "3"),
    "run -- train.py --epochs 3": ("train.py", "--epochs", "3"),
    "run --min-np 2 train.py --min-np 3": ("train.py", "--min-np", "3"),
    "run -f n.yaml --no-balance python -m train": ("python", "-m", "train"),
    "run train.py -- -x": ("train.py", "--", "-x"),
    "run --name=x -- -x": ("-x",),
    "run -- -- x": ("--", "x"),
    "run": (),
    "run --": (),
    "submit --min 2 train.py -f": ("train.py", "-f"),
    "doctor -f n.yaml train.py --help": ("train.py", "--help"),
    "benchmark --seconds 3 train.py": ("train.py",),
    "deploy compose out --image x -- train.py": ("train.py",),
}


@pytest.mark.parametrize("line", SCRIPTS)
def test_a_script_needs_no_dashes_before_it(line):
    """All that follows its name is its own, also what looks like an option of ours."""
    assert parse(line.split()).command == SCRIPTS[line]


MISTAKES = {
    "run --epochs 3 mine.py": "hetero-hvd run mine.py --epochs 3",
    "run --epochs=3 mine.py --x": "hetero-hvd run mine.py --epochs=3 --x",
    "run -q --epochs 3 --lr 0.1 mine.py": "hetero-hvd run -q mine.py --epochs 3 --lr 0.1",
    "run --epochs 3 -- mine.py": "hetero-hvd run -- mine.py --epochs 3",
    "trial --epochs 3 mine.py": "hetero-hvd trial mine.py --epochs 3",
    "run --min-pn 2 -- mine.py": "hetero-hvd run -- mine.py --min-pn 2",
    "run --min_np=2 mine.py": "hetero-hvd run mine.py --min_np=2",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_an_option_before_the_script_is_put_right(line, capsys):
    """In one line, which can be given as it stands."""
    assert main(line.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert ("; did you mean --min-np?; " in said) is ("--min" in line)
    assert said.endswith(f"an option of the script stands behind it: {MISTAKES[line]}")
    assert parse(MISTAKES[line].split()[1:]).command[0] == "mine.py"


def test_help_and_version_import_no_command(capsys):
    """They are there at once."""
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"  {name}" in text or f"also: {name}" in text for name in COMMANDS)
    assert all(f"{title}:" in text for title in GROUPS)
    assert max(map(len, text.splitlines())) <= 80
    code = (
        "import sys; from hetero_hvd.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit(bool({'msgspec', 'numpy', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.run(["python", "-c", code], check=False, capture_output=True).returncode == 0


def test_version(capsys):
    """As every program says it."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"hetero-hvd {hetero_hvd.__version__}\n"


def options(parser, *words):
    """Each command of a parser to its options."""
    yield words, set(options_of(parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from options(command, *words, name)


COMPLETE = """\
complete_words() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _shtab_hetero_hvd
  echo "${COMPREPLY[@]}"
}
"""


def test_bash_completes_every_option_of_every_command(capsys, tmp_path):
    """Commands, options, choices, files and runs, asked of a real bash."""
    pytest.importorskip("shtab")
    assert main(["--completion", "bash"]) == 0
    (tmp_path / "complete.bash").write_text(capsys.readouterr().out + COMPLETE)
    (tmp_path / "runs" / "monday").mkdir(parents=True)
    (tmp_path / "nodes.yaml").touch()
    cases = [
        (words, "--", {o for o in known if o[:2] == "--"})
        for words, known in options(whole_parser())
    ]
    cases += [
        ((), "", {name for name in COMMANDS if " " not in name}),
        (("benchmark",), "", {"collectives"}),
        (("advise", "--for"), "", {"speed", "money", "energy"}),
        (("run", "-f"), "no", {"nodes.yaml"}),
        (("report",), "mo", {"monday"}),
        (("report",), "la", {"latest"}),
        (("run", "--resume"), "mon", {"monday"}),
    ]
    asked = "".join(
        f"complete_words hetero-hvd {shlex.join([*words, begin])}\n" for words, begin, _ in cases
    )
    done = subprocess.run(
        ["bash", "-c", f". ./complete.bash\n{asked}"], cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stderr == b""
    answers = [set(line.split()) for line in done.stdout.decode().splitlines()]
    assert answers == [wanted for _, _, wanted in cases]


WORDS = {
    "adv": "advise",
    "advise --for mon": "advise --for money",
    "benchmark coll": "benchmark collectives",
    "report --js": "report --json",
    "report la": "report latest",
    "report mo": "report monday",
    "top five": "top five-fold",
    "compare monday five": "compare monday five-fold",
    "run --resume 2026-a": "run --resume 2026-a",
    "run -f no": "run -f nodes.yaml",
}
"""What is typed before the tab, and what stands there after it."""

START = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
READ = {
    "bash": ". ./script",
    "zsh": "autoload -Uz compinit; compinit -u; . ./script; compdef _shtab_hetero_hvd hetero-hvd",
    "fish": "set -g fish_autosuggestion_enabled 0; source ./script",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes_in_each_shell(shell, capsys, tmp_path):
    """Commands, options, choices, files, and runs by their names, as a person types them."""
    pytest.importorskip("shtab")
    pytest.importorskip("pyte")
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}: apt install {shell}")
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    assert PREAMBLE[shell] in script
    (tmp_path / "script").write_text(script)
    (tmp_path / "nodes.yaml").touch()
    for folder, name in {"2026-a": "five-fold", "2026-b": "", "monday": ""}.items():
        (tmp_path / "runs" / folder).mkdir(parents=True)
        if name:
            (tmp_path / "runs" / folder / ".run-name").write_text(f"{name}\n")
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    words = [shell, *START[shell]]
    about = {"columns": 150, "environment": home, "folder": tmp_path, "has_echo": True}
    with OnTerminal(words, **about) as terminal:
        terminal.press(f"{READ[shell]}; echo re''ady\n")
        terminal.until(lambda t: "ready" in t.shown)
        for typed, completed in WORDS.items():
            terminal.press(f"hetero-hvd {typed}\t")
            terminal.until(lambda t, end=f"hetero-hvd {completed}": t.last.endswith(end), 20.0)
            terminal.press("\x15\x0c")  # Ctrl-U, Ctrl-L: an empty line on an empty screen
            terminal.until(lambda t: not any("hetero-hvd" in line for line in t.shown))
