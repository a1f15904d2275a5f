"""What trials have measured is found again by later jobs of that model, on those devices."""

from __future__ import annotations

import json

import pytest

from hetero_hvd.messages import (
    PlacementTried,
    TrialReported,
    WorkerId,
    WorkersJoined,
    event_to_json,
)
from hetero_hvd.run.records import placements, run_files
from hetero_hvd.run.records.placements import MAX_TRIALS, NAME, keep_trial, kept_trial

ALPHA, BETA, GAMMA = (WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))


def report(*, model="m", batch=64, workers=(ALPHA, BETA), speeds=(100.0, 101.0)):
    """Of all of them, and of alpha alone."""
    return TrialReported(
        step=9,
        is_complete=True,
        goal="speed",
        words="best",
        model=model,
        global_batch_size=batch,
        workers=workers,
        devices=tuple(f"device of {worker.node}" for worker in workers),
        placements=(
            PlacementTried(
                nodes=tuple(worker.node for worker in workers),
                rounds=(0, 1),
                samples_per_second=speeds,
            ),
            PlacementTried(nodes=("alpha",), rounds=(0, 1), samples_per_second=(120.0, 121.0)),
            PlacementTried(nodes=("beta",)),
        ),
    )


def joined(*, model="m", batch=64, workers=(ALPHA, BETA), device="device of"):
    """These train."""
    return WorkersJoined(
        rendezvous_id=1,
        workers=workers,
        applied_steps=0,
        global_batch_size=batch,
        capacities=(),
        prefetch_steps=0,
        devices=tuple(f"{device} {worker.node}" for worker in workers),
        model=model,
    )


@pytest.mark.parametrize(
    ("more", "is_known"),
    [
        ({}, True),
        ({"workers": (ALPHA,)}, True),
        ({"workers": (BETA,)}, False),
        ({"workers": (ALPHA, GAMMA)}, False),
        ({"model": "n"}, False),
        ({"batch": 128}, False),
        ({"device": "another one of"}, False),
    ],
)
def test_it_is_known_of_the_same_model_batch_and_devices_only(tmp_path, more, is_known):
    """As far as the workers of now were measured together."""
    keep_trial(tmp_path / "first", report())
    found = kept_trial(tmp_path / "second", joined(**more))
    assert (found is not None) == is_known
    if found is not None:
        assert found.run == "first"
        assert [each.nodes for each in found.trial.placements if each.rounds] == [
            ("alpha", "beta"),
            ("alpha",),
        ]


def test_the_newest_of_a_kind_is_kept_and_not_more_than_there_is_room_for(tmp_path):
    """An earlier one of the same is replaced; without a measurement nothing is written."""
    keep_trial(tmp_path / "none", report(speeds=()))
    for number in range(MAX_TRIALS + 5):
        keep_trial(tmp_path / f"{number}", report(model=f"m{number % (MAX_TRIALS + 2)}"))
    assert kept_trial(tmp_path / "x", joined(model="m0")).run == f"{MAX_TRIALS + 2}"
    assert kept_trial(tmp_path / "x", joined(model="m3")) is None
    assert kept_trial(tmp_path / "x", joined(model="m5")) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"added_later": 1},
        {"devices": ["one of two"]},
        {"placements": [{"nodes": ["alpha", "beta"], "rounds": [0], "samples_per_second": []}]},
        {"placements": [{"nodes": ["beta"], "rounds": [0], "samples_per_second": [0.0]}]},
        {"placements": [{"nodes": ["beta"], "rounds": [0], "samples_per_second": [None]}]},
    ],
)
def test_a_trial_that_is_none_takes_no_other_with_it(tmp_path, wrong):
    """Such as one of a later version."""
    keep_trial(tmp_path / "first", report())
    keep_trial(tmp_path / "second", report(model="n"))
    lines = json.loads((tmp_path / NAME).read_text())
    lines[0]["trial"] |= wrong
    (tmp_path / NAME).write_text(json.dumps(lines))
    assert kept_trial(tmp_path / "run", joined()) is None
    assert kept_trial(tmp_path / "run", joined(model="n")) is not None
    keep_trial(tmp_path / "run", report(batch=128))
    assert kept_trial(tmp_path / "run", joined(model="n")) is not None


@pytest.mark.parametrize(
    "content",
    [
        b"[" + b'{"run": "a", "trial": ' * 10**5,
        b'[{"run": "\xff", "trial": {}}]',
        b"",
        b"{",
        b'[{"run": 1}]',
        b'{"a": 1}',
        b'[{"run": "a", "trial": {}}]',
        b'[{"run": "a", "trial": {"type": "TrialReported", "words": "\xff"}}]',
        b'[{"run": "a", "trial": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    ],
)
def test_what_cannot_be_read_is_as_if_it_were_not_there(tmp_path, content):
    """And is written anew by the next trial."""
    (tmp_path / NAME).write_bytes(content)
    assert kept_trial(tmp_path / "run", joined()) is None
    keep_trial(tmp_path / "run", report())
    assert kept_trial(tmp_path / "run", joined()) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"devices": ["cpu"]},
        {"placements": {"rounds": [0]}},
        {"placements": {"samples_per_second": [0.0, 1.0]}},
        {"placements": {"samples_per_second": [None, 1.0]}},
        {"placements": {"samples_per_second": [1e308, 1e308]}},
        {"placements": {"cost_per_sample": -1.0}},
    ],
)
def test_a_trial_that_cannot_be_one_is_passed_over(tmp_path, wrong):
    """The others stay, and a new one is added."""
    keep_trial(tmp_path / "good", report(model="n"))
    good, bad = (json.loads(event_to_json(report(model=name))) for name in ("n", "m"))
    more = {"rounds": [0, 1], "samples_per_second": [1.0, 1.0]} | wrong.get("placements", {})
    bad |= wrong | {"placements": [each | more for each in bad["placements"]]}
    lines = [{"run": "good", "trial": good}, {"run": "bad", "trial": bad}]
    (tmp_path / NAME).write_text(json.dumps(lines))
    assert kept_trial(tmp_path / "x", joined()) is None
    assert kept_trial(tmp_path / "x", joined(model="n")).run == "good"
    keep_trial(tmp_path / "new", report())
    assert kept_trial(tmp_path / "x", joined()).run == "new"
    assert kept_trial(tmp_path / "x", joined(model="n")).run == "good"


def test_what_somebody_else_has_kept_is_not_replaced(tmp_path, caplog, monkeypatch):
    """What cannot be read may be whole; nor is half a file left where one cannot be written."""

    def closed(*_):
        raise PermissionError(13, "Permission denied")

    keep_trial(tmp_path / "run", report())
    before = (tmp_path / NAME).read_bytes()
    with monkeypatch.context() as patch:
        for module in (placements, run_files):
            patch.setattr(module, "regular", closed)
        assert kept_trial(tmp_path / "run", joined()) is None
        keep_trial(tmp_path / "run", report(model="n"))
    with monkeypatch.context() as patch:
        patch.setattr(placements.Path, "replace", closed)
        keep_trial(tmp_path / "run", report(model="n"))
    assert (tmp_path / NAME).read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [f".{NAME}.lock", NAME]
    assert caplog.text.count("Permission denied") == 3
