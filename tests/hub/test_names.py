"""Sessions and phases have names by one rule, and whoever breaks it is told in one line."""

from __future__ import annotations

import html
import re

import pytest

from hetero_hvd.cli import main
from hetero_hvd.core.names import NODE, RECORDED_NAME
from hetero_hvd.errors import UserError
from hetero_hvd.hub.http.api import PAGE
from hetero_hvd.worker.timing.named_phases import NamedTimes, phase
from tests.hub.test_api import run
from tests.hub.test_flags import NO_NAMES, NO_NODES

NAMES = ("a", "7", "load-2", "a.b_c", "x" * 64)
NO_TEXTS = (5, None, ["x"], b"x")


def refused(act, *words):
    """What somebody is told."""
    with pytest.raises(UserError) as found:
        act(*words)
    return str(found.value)


async def over_http(client, path, **body):
    """The same over HTTP, without what all is told that is not understood."""
    status, told, _ = await client.ask(path, body)
    assert status == 400, told
    return told["error"].removesuffix("; see GET /v1/openapi.json")


def without_what(line):
    """A refusal, from the name on."""
    return re.fullmatch(r"(?:hetero-hvd: )?(?:session|phase|node|--nodes: found) (.*)", line)[1]


def test_every_way_in_has_one_rule_and_one_line(tmp_path, monkeypatch, capsys):
    """The command line, HTTP, the order of a driver, and a script."""
    monkeypatch.chdir(tmp_path)
    names = [name for name in NO_NAMES if name.isascii() or name.isprintable()]

    def on_the_command_line(*words):
        assert main(["record", *words]) == 2
        return capsys.readouterr().err.rstrip("\n")

    async def act(client):
        told = {}
        for name in names:
            started = await over_http(client, "/v1/sessions", name=name)
            cut = await over_http(client, "/v1/cuts", name=name)
            with pytest.raises(UserError) as ordered:
                await client.commands.act("start", {"name": name})
            told[name] = [started, cut, str(ordered.value)]
        return told

    told = run(tmp_path, act)
    for name in names:
        told[name] += [refused(NamedTimes().admit, name), refused(phase, name)]
        if not name.startswith("-"):  # which is a flag
            told[name].append(on_the_command_line("start", name))
        (line,) = {without_what(each) for each in told[name]}
        assert line.endswith(f": the name must be {RECORDED_NAME.allowed}")
    for wrong in NO_TEXTS:
        assert RECORDED_NAME.allowed in refused(NamedTimes().admit, wrong)


def test_every_name_that_may_be_may_be_everywhere(tmp_path):
    """What a phase is called, its session can be called."""

    async def act(client):
        return [(await client.ask("/v1/sessions", {"name": name}))[0] for name in NAMES]

    assert run(tmp_path, act) == [200] * len(NAMES)
    for name in NAMES:
        NamedTimes().admit(name)


def test_nodes_have_one_rule_too(tmp_path, monkeypatch, capsys):
    """Whoever names them."""
    monkeypatch.chdir(tmp_path)

    async def act(client):
        return [
            await over_http(client, "/v1/sessions", name="x", nodes=[name])
            for name in NO_NODES
            if name.isprintable() and "," not in name
        ]

    told = run(tmp_path, act)
    assert main(["record", "start", "x", "--nodes=../x"]) == 2
    told.append(capsys.readouterr().err.rstrip("\n"))
    for line in told:
        assert without_what(line).endswith(f": the name must be {NODE.allowed}")


def test_the_page_has_the_same_rule():
    """In its own notation, and the same words."""
    fields = re.findall(r'<input name="name" .*? pattern="(.*?)" title="(.*?)">', PAGE.read_text())
    assert len(fields) == 2
    for pattern, title in fields:
        assert pattern.replace(r"\-", "-") == RECORDED_NAME.pattern.pattern
        assert html.unescape(title) == RECORDED_NAME.allowed
