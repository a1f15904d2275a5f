"""What a user sets for a script under `horovodrun` reaches all of its workers."""

from __future__ import annotations

import pytest


@pytest.mark.process
def test_variables_reach_all_workers_and_a_typo_is_told_once(run_workers, monkeypatch, capfd):
    """One warning, by the leader; who they are comes from Horovod."""
    monkeypatch.setenv("HETERO_HVD_STALENESS_BOUND", "2")
    monkeypatch.setenv("HETERO_HVD_BALANCE", "off")
    monkeypatch.setenv("HETERO_HVD_GRAINS", "4")
    found = run_workers("told", 2)
    assert [each["launch"]["identity"]["worker"] for each in found] == [
        ["localhost", 0],
        ["localhost", 1],
    ]
    assert [each["launch"]["job"]["staleness_bound"] for each in found] == [2, 2]
    assert [each["balance"] for each in found] == [False, False]
    line = (
        "environment: HETERO_HVD_GRAINS: there is no such variable; did you mean HETERO_HVD_GRAIN?"
    )
    assert capfd.readouterr().err.count(line) == 1
