"""Which training mode is asked for: by name, by switch, by the job, or by several at once."""

from __future__ import annotations

from typing import get_args

import pytest

from hetero_hvd import UserError
from hetero_hvd.config import JobConfig
from hetero_hvd.errors import ConfigError
from hetero_hvd.messages.launch import MODE_NAMES, SWITCHES, JobSettings, ModeName, asked_mode
from hetero_hvd.worker.options import step_options
from hetero_hvd.worker.session.launch_settings import read_launch_settings
from hetero_hvd.worker.training_modes import MODES

SCRIPTS = {
    "nobody asks": ({}, "synchronous", "synchronous"),
    "the job asks": ({}, "wait_free", "wait_free"),
    "the script by name": ({"mode": "reproducible"}, "synchronous", "reproducible"),
    "the script by switch": ({"reproducible": True}, "synchronous", "reproducible"),
    "both ways": ({"mode": "wait_free", "wait_free": True}, "synchronous", "wait_free"),
    "the script comes first": ({"wait_free": True}, "reproducible", "wait_free"),
    "the plain one by name": ({"mode": "synchronous"}, "wait_free", "synchronous"),
    "off": ({"wait_free": False}, "wait_free", "synchronous"),
    "another one is off": ({"reproducible": False}, "wait_free", "wait_free"),
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_the_script_comes_before_the_job(case):
    """By the name of the mode, or by its switch."""
    given, job, expected = SCRIPTS[case]
    assert step_options(given, JobSettings(mode=job), loader_batch_size=8).mode == expected


REFUSED = {
    "wait_free: must be off in the reproducible mode": {"mode": "reproducible", "wait_free": True},
    "wait_free: must be off in the reproducible": {"reproducible": True, "wait_free": True},
    "reproducible: must be off in the synchronous": {"mode": "synchronous", "reproducible": True},
    "wait_free: must not be off": {"mode": "wait_free", "wait_free": False},
    "mode='async': must be synchronous, reproducible or wait_free": {"mode": "async"},
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_script_that_asks_for_two_is_refused(words):
    """In one line, which says what to leave out."""
    with pytest.raises(UserError, match=words):
        step_options(REFUSED[words], JobSettings(), loader_batch_size=8)


@pytest.mark.parametrize("name", MODE_NAMES)
def test_every_mode_can_be_asked_for_in_every_way(name):
    """By the job's setting, by a variable, and by the switch where it has one; each has a class."""
    assert MODES[name].name == name
    ways = [{"mode": name}] + [{name: True}] * (name in SWITCHES)
    for way in ways:
        assert JobConfig(**way).training_mode == name
        variables = {f"HETERO_HVD_{key.upper()}": str(value) for key, value in way.items()}
        assert read_launch_settings(variables).launch.job.mode == name


@pytest.mark.parametrize("way", [{"reproducible": True}, {"mode": "reproducible"}], ids=str)
def test_a_job_that_asks_for_two_is_refused(way):
    """As a setting, and as a variable."""
    with pytest.raises(ConfigError, match="wait_free: must be off in the reproducible mode"):
        JobConfig(**way, wait_free=True)
    variables = {f"HETERO_HVD_{key.upper()}": str(value) for key, value in way.items()}
    with pytest.raises(UserError, match="wait_free: must be off in the reproducible mode"):
        read_launch_settings(variables | {"HETERO_HVD_WAIT_FREE": "1"})


def test_every_mode_has_a_class_and_every_switch_is_a_mode():
    """There are no others."""
    assert set(MODES) == set(get_args(ModeName))
    assert set(SWITCHES) < set(MODES)
    assert asked_mode(None, {}) == "synchronous"
