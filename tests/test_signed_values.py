"""A value below 0 is one, and is told with what is allowed, of whatever option it is."""

from __future__ import annotations

import argparse
import itertools

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.parsing import parse, whole_parser
from hetero_hvd.errors import UserError
from hetero_hvd.messages import RunEnded
from hetero_hvd.security.cluster_key import make_key
from tests.run.records.test_records import write


def options_with_values(parser, *words):
    """Words before each option that takes one value, with it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from options_with_values(command, *words, name)
        elif action.option_strings and action.nargs in (None, "?"):
            yield [*words, action.option_strings[0]]


VALUED = {" ".join(words): words for words in options_with_values(whole_parser())}


def misread(words):
    """Whether a value is taken for an option."""
    try:
        parse(words)
    except UserError as error:
        return "needs a value" in str(error) or "unknown option" in str(error)
    return False


def test_a_value_below_0_is_no_option():
    """Of each option that takes one: it is the option's to say what is allowed."""
    assert len(VALUED) > 200
    values = itertools.cycle(["-5", "-5%", "-5m", "-.5", "-inf", "-1:00"])
    asked = [[*words, value] for words, value in zip(VALUED.values(), values, strict=False)]
    assert [words for words in asked if misread(words)] == []


BELOW_0 = {
    "advise run --worth -5%": "'-5%': must be a part of at least 0, such as 10%",
    "advise run --worth -30m": "'-30m': must be a part of at least 0, such as 10%, or a time",
    "advise run --hours -1": "'-1': must be a number of hours above 0 and up to 10000",
    "report run --at -5m": "--at: found '-5m', must be a date and time such as",
    "cost run --power-price -0.1": "'-0.1': must be a number of at least 0",
    "top run --interval -2": "--interval: found -2, must be from 0.1 to 3600",
    "top run --interval -2s": "argument --interval: found '-2s', must be a number",
    "record start a --every -5s": "--every: found '-5s', must be a time above 0 such as 500ms",
    "record start a --keep-bytes -5": "--keep-bytes: found '-5', must be an integer above 0",
    "record cut a --from -10m": "--from: found '-10m', must be a date and time such as",
    "submit --deadline -12h x.py": "--deadline: found '-12h', must be a time above 0",
    "submit --max -1 x.py": "--max: found '-1', must be an integer above 0",
    "queue why -3": "JOB: found '-3', must be an integer above 0",
    "queue logs -f -3": "JOB: found '-3', must be an integer above 0",
    "agent --port -1 --key-file key": "--port: found '-1', must be an integer from 0 to 65535",
    "hub --keep -30d --key-file key": "--keep: found '-30d', must be a time above 0",
    "doctor --timeout -5 -f nodes.yaml": "--timeout: found -5, must be from 5 to 3600",
    "benchmark --seconds -1": "--seconds: found -1, must be from 0.1 to 86400",
    "trial --steps -5 x.py": "'-5': must be a whole number from 1 to 1000000",
    "run --min-np -2 tran.py": "flag: --min-np: found '-2', must be an integer of at least 1",
    "run --heartbeat-timeout-seconds -3s tran.py": "-timeout-seconds: found '-3s', must be",
    "deploy kubernetes x --image a --cpu -1 -- x.py": "--cpu: found '-1', must be an integer from",
}


@pytest.mark.parametrize("line", BELOW_0)
def test_what_is_below_0_is_told_with_what_is_allowed(tmp_path, monkeypatch, capsys, line):
    """Whether argparse reads it, the command or the settings of the job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: a}]")
    (tmp_path / "tran.py").touch()
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", RunEnded(exit_code=0, reason="done"))
    make_key(tmp_path / "key")
    assert main(line.split()) == 2
    said = capsys.readouterr().err.splitlines()
    assert any(BELOW_0[line] in each for each in said), said
