"""Every variable of ours is known, and one that is not is told."""

import re
from pathlib import Path

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.config import EmulateConfig, JobConfig, NodeConfig
from hetero_hvd.config.setting import settings_of
from hetero_hvd.config.variables import ALONE_SETTINGS, KNOWN, SET_FOR_WORKERS, unknown
from hetero_hvd.messages.launch import EmulateSettings, JobSettings, NodeSettings

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("hetero_hvd", "scripts", "docs", "tests/kit")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".sh", ".service", ".yaml", ".yml", ""} and path.is_file()
)
OLD = {"docs/changelog.md"}
"""Tells of variables that there were."""


def test_no_name_in_source_or_docs_is_missing():
    """A variable that somebody reads or tells of is one that a user may set."""
    found = {
        name
        for path in (*SOURCES, ROOT / "README.md")
        if str(path.relative_to(ROOT)) not in OLD
        for name in re.findall(r"\bHETERO_HVD_[A-Z_]*[A-Z]\b", path.read_text(errors="replace"))
    }
    assert found - set(KNOWN) == set()
    assert found >= {s.variable for s in ALONE_SETTINGS} | SET_FOR_WORKERS.keys()
    assert len(set(KNOWN)) == len(KNOWN)


TYPOS = {
    "HETERO_HVD_MIN_PN": "did you mean HETERO_HVD_MIN_NP?",
    "HETERO_HVD_min_np": "did you mean HETERO_HVD_MIN_NP?",
    "HETERO_HVD_HANG_SECONDS": "did you mean HETERO_HVD_HANG_TIMEOUT_SECONDS?",
    "HETERO_HVD_XYZZY": "unset it",
    "HETERO_HVD_" + "CHANNEL_TLS": "driver and workers always use TLS; unset it",
    "HETERO_HVD_": "unset it",
}


@pytest.mark.parametrize("name", TYPOS)
def test_a_typo_is_one_line_with_the_nearest_name(name):
    """Empty ones are not given; those of others are none of our business."""
    others = {"HETERO_HVD_MIN_NP": "1", "HETERO_HVD_EMPTY": "", "HETERO": "x", "PATH": "/bin"}
    lines = list(unknown(others | dict.fromkeys(SET_FOR_WORKERS, "x") | {name: "2"}))
    assert lines == [f"environment: {name}: there is no such variable; {TYPOS[name]}"]


COMMANDS = {
    "of settings": ["run", "--", "x"],
    "that shows them": ["config"],
    "agent": ["agent", "--key-file", "none"],
    "hub": ["hub", "--key-file", "none"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_typo_ends_every_command_that_reads_or_passes_on_variables(
    command, tmp_path, monkeypatch, capsys
):
    """Before it looks at anything else; all of them at once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: a}]\n")
    for name in ("HETERO_HVD_SAMPLES_FOLDR", "HETERO_HVD_MIN_PN"):
        monkeypatch.setenv(name, "x")
    assert main(COMMANDS[command]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"hetero-hvd: environment: {name}: there is no such variable; did you mean {meant}?"
        for name, meant in (
            ("HETERO_HVD_SAMPLES_FOLDR", "HETERO_HVD_SAMPLES_FOLDER"),
            ("HETERO_HVD_MIN_PN", "HETERO_HVD_MIN_NP"),
        )
    ]


@pytest.mark.parametrize(
    ("told", "config"),
    [(NodeSettings, NodeConfig), (JobSettings, JobConfig), (EmulateSettings, EmulateConfig)],
)
def test_what_a_worker_is_told_has_the_names_and_defaults_of_the_settings(told, config):
    """So that the driver need not know which they are."""
    defaults = {setting.name: setting.default for setting in settings_of(config)}
    fields = msgspec.structs.asdict(told())
    assert fields == {name: defaults[name] for name in fields}
