"""Amounts and ports of the commands of a hub: text that is no number is one line."""

from __future__ import annotations

import pytest

from hetero_hvd.cli import main

LONG = "9" * 5000
"""More digits than Python reads."""

NO_AMOUNTS = ("", "0", "-1", "1.5", "x", "²", LONG)
NO_PORTS = ("", "-1", "65536", "x", "²", LONG)
CASES = [
    *((["hub"], "--keep-bytes", text) for text in NO_AMOUNTS),
    *((["record", "start", "one"], "--keep-bytes", text) for text in NO_AMOUNTS),
    *((["hub"], "--keep", text) for text in ("", "0", "0s", "0.0d", "-1d", "x", LONG + "d")),
    *((["hub"], flag, text) for flag in ("--port", "--http-port") for text in NO_PORTS),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0][0]} {case[1]}={case[2][:5]}")
def test_what_is_no_number_is_one_line(tmp_path, monkeypatch, capsys, case):
    """Before a port is had or a hub is asked."""
    command, flag, text = case
    monkeypatch.chdir(tmp_path)
    assert main(["key"]) == 0
    capsys.readouterr()
    assert main([*command, f"{flag}={text}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hetero-hvd: {flag}: found")
