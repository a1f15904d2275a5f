"""What is advised of recorded runs, by the command: its lines, its JSON, its commands, mistakes."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections import Counter

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.watch import declined
from hetero_hvd.messages import (
    NodesPriced,
    PlacementTried,
    RunEnded,
    RunStarted,
    StragglerReported,
    TrialReported,
    WorkersJoined,
)
from hetero_hvd.run.recordings.frames import FILE
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.placements import keep_trial
from hetero_hvd.run.reports.share_times import share_times

from .test_costs import ALPHA, GAMMA, day, record, timed, timing


@pytest.fixture(autouse=True)
def _nothing_is_declined(tmp_path, monkeypatch):
    """By whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing declined"))


def told(capsys, *words):
    """What the command prints."""
    assert main(["advise", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def long_run(tmp_path):
    """Two nodes of the same price, of which one is four times as slow, over many intervals."""
    events = day({"alpha": 1.0, "gamma": 1.0})
    more = [(0.95 + 0.005 * number, timed(number, 3.0)) for number in range(9)]
    return record(tmp_path / "long one", sorted([*events, *more], key=lambda pair: pair[0]))


def test_a_node_that_costs_more_than_it_brings_is_told(long_run, capsys):
    """With curves and prices; the line to try is carried out as it is printed."""
    said = told(capsys, long_run, "--for", "money")
    assert "1. leave gamma out: " in said
    assert "cheaper per sample; " in said
    assert "   as      prices per hour: alpha 1, gamma 1" in said
    (line,) = [line for line in said.splitlines() if line.startswith("   try ")]
    words = shlex.split(line.removeprefix("   try "))
    assert words[0] == "hetero-hvd"
    assert main(words[1:]) == 0
    assert "without gamma: " in capsys.readouterr().out


def test_programs_are_told_the_same(long_run, capsys):
    """As JSON; what could not be judged, too."""
    found = json.loads(told(capsys, long_run, "--json"))
    assert found["advice"][0]["kind"] == "placement"
    assert found["advice"][0]["gains"][0]["goal"] == "money"
    assert any("energy: no power was measured of gamma" in line for line in found["not_judged"])


def test_a_report_has_it_too(long_run, tmp_path, capsys):
    """In lines, and on its page."""
    assert main(["report", str(long_run)]) == 0
    assert "  advice: leave gamma out: " in capsys.readouterr().out
    assert main(["report", str(long_run), "--html", str(tmp_path / "page.html")]) == 0
    assert '"advice":["leave gamma out: ' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--worth", "99%"], "nothing to gain, as far as it was measured"),
        (["--for", "energy"], "nothing to gain, as far as it was measured"),
        (["--worth", "0.99"], "nothing to gain, as far as it was measured"),
    ],
)
def test_what_is_not_asked_for_is_not_told(long_run, capsys, words, said):
    """Nothing to gain is one line."""
    assert told(capsys, long_run, *words).splitlines()[0] == said


def test_a_short_run_is_not_judged(tmp_path, capsys):
    """It says how little was measured."""
    said = told(capsys, record(tmp_path / "short", day({"alpha": 1.0, "gamma": 9.0})[:8]))
    assert "not judged: other sets of nodes: fewer than 3 intervals were measured" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--worth", "much"],
            "'much': must be a part of at least 0, such as 10%, or a time, such as 30m",
        ),
        (["--worth=-1"], "'-1': must be a part of at least 0, such as 10%"),
        (["--worth", "nan"], "'nan': must be a part of at least 0, such as 10%"),
        (["--for", "fun"], "found 'fun', must be one of"),
        (["--hours", "0"], "'0': must be a number of hours above 0 and up to 10000"),
        (["--hours", "nan"], "'nan': must be a number of hours above 0"),
        (["--hours", "1"], "--hours is of recordings and of --prometheus"),
        (["--match", 'a="b"'], "--match belongs to --prometheus, which is missing"),
        (["--prometheus-ca", "x"], "--prometheus-ca belongs to --prometheus, which is missing"),
        (["--prometheus", "http://h", "nowhere"], "--prometheus: machines are judged by it alone"),
        (["--prometheus", "nowhere"], "nowhere: must be an address such as https://HOST:9090"),
        (["--prometheus", "file:///etc/passwd"], "must be an address such as https://HOST:9090"),
        (["--prometheus", "http://me:word@h"], "--prometheus: a name, a password or a query has"),
        (["--prometheus", "https://h", "--prometheus-ca", "no"], "no: cannot be read as certif"),
        (["--prometheus", "https://h", "--prometheus-token-file", "no"], "no cannot be read: "),
        (["--decline", "nonsense"], "'nonsense': is no ID of an advice"),
        (["--recall", "idle:a\nb"], "is no ID of an advice"),
        (["recorded"], "recorded/recording.json: cannot be read: "),
        (["nowhere"], "nowhere: no run is recorded there (run.sqlite is missing)"),
        ([], "latest: no run is recorded there (run.sqlite is missing)"),
    ],
)
def test_wrong_words_are_told_in_one_line(tmp_path, monkeypatch, capsys, words, said):
    """As of every command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / FILE).touch()
    assert main(["advise", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_what_was_declined_is_not_told_again(long_run, tmp_path, monkeypatch, capsys):
    """By the ID that stands under it, until it is recalled; a file of rubbish declines nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    said = told(capsys, long_run)
    (line,) = [line for line in said.splitlines() if "placement:" in line]
    (id_,) = line.split()[1:]
    assert f"{id_}: is not told any more" in told(capsys, "--decline", id_)
    again = told(capsys, long_run)
    assert "leave gamma out" not in again
    assert f"not told, as declined: {id_}" in again
    assert json.loads(told(capsys, long_run, "--json"))["declined"] == [id_]
    assert "is told again" in told(capsys, "--recall", id_, "--recall", "idle:x")
    assert "leave gamma out" in told(capsys, long_run)
    file = tmp_path / "state" / "hetero_hvd" / "declined-advice"
    file.write_bytes(b"\xff\n\n" + bytes(9))
    assert "leave gamma out" in told(capsys, long_run)
    assert "--recall 'idle:box é:0' tells" in told(capsys, "--decline", "idle:box é:0")
    assert file.read_text(encoding="utf-8") == "idle:box é:0\n"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_of_declined_advice_is_told(make, tmp_path, monkeypatch, capsys):
    """It is not waited for: nobody may write to a pipe."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "hetero_hvd").mkdir()
    make(tmp_path / "hetero_hvd" / "declined-advice")
    assert main(["advise", "--decline", "idle:a:0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "declined-advice: cannot be changed: is no regular file" in line


@pytest.mark.parametrize(
    "id_", ["idle:gpu 1 of Zoë:0", f"placement:{'+'.join(f'gpu-node-{n:03}' for n in range(300))}"]
)
def test_whatever_id_stands_under_an_advice_can_be_declined(tmp_path, monkeypatch, capsys, id_):
    """A Prometheus has any names, and a large cluster many."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "is not told any more" in told(capsys, "--decline", id_)
    assert declined.ids() == {id_}


def test_a_run_that_is_named_twice_is_one(long_run, monkeypatch, capsys):
    """Else whoever was slow in it once would be slow in two of two."""
    monkeypatch.chdir(long_run.parent)
    judged = []
    monkeypatch.setattr(
        "hetero_hvd.run.reports.advice.recurring", lambda runs: judged.extend(runs) or ()
    )
    told(capsys, long_run, long_run.name, f"{long_run}/")
    assert [run.name for run in judged] == ["day"]


@pytest.mark.parametrize(("alone", "is_told"), [(120.0, True), (101.0, False)])
def test_what_a_trial_has_measured_takes_the_place_of_what_curves_say(
    long_run, capsys, alone, is_told
):
    """By its rounds; what is not worth it is not told, though curves would say so."""
    joined = share_times(read_run(long_run)).joined
    placements = [(("alpha", "gamma"), 100.0), (("alpha",), alone)]
    report = TrialReported(
        step=9,
        is_complete=True,
        goal="speed",
        words="",
        model=joined.model,
        global_batch_size=joined.global_batch_size,
        workers=joined.workers,
        devices=joined.devices,
        placements=tuple(
            PlacementTried(
                nodes=nodes,
                rounds=(0, 1, 2),
                samples_per_second=(speed, 1.01 * speed, 0.99 * speed),
                num_steps=60,
            )
            for nodes, speed in placements
        ),
    )
    keep_trial(long_run.parent / "earlier", report)
    said = told(capsys, long_run, "--worth", "10%")
    assert ("leave gamma out: 20% faster" in said) == is_told
    assert ("measured by the trial of earlier" in said) == is_told
    assert ("leave " in said) == is_told
    assert "alpha: 120 samples/s (118.8 to 121.2) over 60 steps in 3 rounds" in said or not is_told


def verdict(worker, since_step, *, is_slow, step=None, speed_ratio=None):
    """What is told of a worker's speed."""
    return StragglerReported(
        step=since_step + 5 if step is None else step,
        worker=worker,
        is_slow=is_slow,
        speed_ratio=speed_ratio or (0.5 if is_slow else 1.0),
        cause="compute" if is_slow else None,
        since_step=since_step,
    )


CHANGES = {  # what was told of whom, and the shares of gamma whose times count
    "nobody": ([], {20, 10}),
    "another one": ([(ALPHA, 50, True)], {20, 10}),
    "it became slow": ([(GAMMA, 100, True)], {10}),
    "it became slow and is well again": ([(GAMMA, 100, True), (GAMMA, 150, False)], {20}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_worker_whose_speed_has_changed_is_measured_since_then(tmp_path, capsys, case):
    """It had less when it was slow, in the same time: no time seems to depend on the share."""
    told_of, shares = CHANGES[case]
    until = 200 if shares == {10} else 150
    events = [(at, event) for at, event in day({"alpha": 1.0, "gamma": 1.0}) if at < 1.0]
    for number in range(20):
        is_slow = 100 <= 10 * number < until
        rows = (
            (timing(90, 0.09), timing(10, 0.09))
            if is_slow
            else (timing(80, 0.08), timing(20, 0.09))
        )
        events.append((1.0 + number / 20, timed(10 * number + 9, 1.0, rows=rows)))
    for worker, since_step, is_slow in told_of:
        events.append((1.0 + since_step / 200 + 0.01, verdict(worker, since_step, is_slow=is_slow)))
    events.append((2.0, RunEnded(exit_code=0, reason="done")))
    run = record(tmp_path / "run", sorted(events, key=lambda pair: pair[0]))
    times = share_times(read_run(run)).times
    assert {round(time.share) for time in times[GAMMA]} == shares
    assert "leave alpha out" not in told(capsys, run)


def joined(number, applied_steps, *workers):
    """A membership."""
    return WorkersJoined(
        rendezvous_id=number,
        workers=workers,
        applied_steps=applied_steps,
        global_batch_size=100,
        capacities=(-1,) * len(workers),
        prefetch_steps=0,
    )


def exchanges(number, first_step, *shares):
    """Of ten steps each, the first of a membership apart, by gamma's share; None: it is away."""
    return [
        timed(
            first_step + 10 * index - 1,
            1.0,
            rows=(timing(100, 0.1),)
            if share is None
            else (timing(100 - share, (100 - share) / 1000), timing(share, 0.09)),
            number=number,
        )
        for index, share in enumerate([shares[0], *shares])
    ]


START = [
    RunStarted(run_id="day", command=(), nodes=(), settings={}),
    joined(1, 0, ALPHA, GAMMA),
]
WELL, SLOW, AWAY = [20] * 6, [10] * 7, [None] * 3
IS_SLOW = [*exchanges(1, 0, *WELL, *SLOW), verdict(GAMMA, 60, is_slow=True)]
TOLD_AGAIN = [*exchanges(1, 130, *[5] * 6)[1:], verdict(GAMMA, 60, is_slow=True, step=139)]
LEAVES = [joined(2, 130, ALPHA), *exchanges(2, 130, *AWAY), joined(3, 160, ALPHA)]
COMES_BACK = [joined(4, 160, ALPHA, GAMMA), *exchanges(4, 160, *WELL)]
RESUMED = [START[0], joined(5, 30, ALPHA, GAMMA), *exchanges(5, 30, *WELL)]
SLOW_AFTER_RESUME = [
    *RESUMED,
    *exchanges(5, 90, *SLOW)[1:],
    verdict(GAMMA, 90, is_slow=True),
]
MISSING = verdict(GAMMA, 130, is_slow=False, speed_ratio=math.nan)

STORIES = {  # what happened, and share of gamma to the number of exchanges that count
    "it is slow": (IS_SLOW, {10: 7}),
    "it is told again as it became slower": ([*IS_SLOW, *TOLD_AGAIN], {5: 5}),
    "it leaves and comes back well": ([*IS_SLOW, *LEAVES, *COMES_BACK], {20: 6}),
    "it is slow again after it came back": (
        [*IS_SLOW, *LEAVES, *COMES_BACK, verdict(GAMMA, 0, is_slow=True, step=219)],
        {20: 6},
    ),
    "it leaves and comes back while another one is slow": (
        [*exchanges(1, 0, *SLOW), *LEAVES, verdict(ALPHA, 0, is_slow=True), *COMES_BACK],
        {10: 7, 20: 6},
    ),
    "the run is resumed": ([*IS_SLOW, *RESUMED], {20: 6}),
    "the run is resumed, and it becomes slow again": ([*IS_SLOW, *SLOW_AFTER_RESUME], {10: 7}),
    "it becomes slow only after the run was resumed": (
        [*exchanges(1, 0, *WELL * 4), *SLOW_AFTER_RESUME],
        {10: 7},
    ),
    "a resume trains nothing": ([*IS_SLOW, START[0]], {10: 7}),
    "a well one is resumed": ([*exchanges(1, 0, *SLOW), *RESUMED], {10: 7, 20: 6}),
    "its timings are missing": ([*IS_SLOW, *exchanges(1, 130, 10, 10)[1:], MISSING], {10: 9}),
    "its timings were missing": (
        [*exchanges(1, 0, *WELL, *SLOW), MISSING, verdict(GAMMA, 130, is_slow=False)],
        {20: 6, 10: 7},
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_rows_count_from_the_newest_change_of_a_speed(tmp_path, story):
    """Told again, gone for a time, resumed, or not measured: each is a change, or is none."""
    events, shares = STORIES[story]
    hours = [(number / 50, event) for number, event in enumerate([*START, *events])]
    times = share_times(read_run(record(tmp_path / "run", hours))).times
    assert Counter(round(time.share) for time in times[GAMMA]) == shares


NEW_SPEED = {  # what happened, and since when nothing was measured
    "it became slow": ([*exchanges(1, 0, *WELL), verdict(GAMMA, 60, is_slow=True)], "{} step 60"),
    "it has come back": ([*IS_SLOW, *LEAVES, COMES_BACK[0]], "since it came back at step 160"),
    "the run is resumed": ([*IS_SLOW, *RESUMED[:2]], "since the newest start"),
    "it has just come": ([*LEAVES[:1], *exchanges(2, 130, *AWAY * 2), COMES_BACK[0]], ""),
}


@pytest.mark.parametrize("story", NEW_SPEED)
def test_what_was_measured_before_a_speed_changed_is_not_denied(tmp_path, capsys, story):
    """It is told that it does not count, and from when on it would."""
    events, words = NEW_SPEED[story]
    since = f" {words.format('since its speed changed at')}".rstrip()
    priced = [*START, NodesPriced(per_hour={"alpha": 1, "gamma": 1}), *events]
    run = record(tmp_path / "run", [(number / 50, event) for number, event in enumerate(priced)])
    assert f"intervals were measured of gamma:0{since}\n" in told(capsys, run)
    assert main(["cost", str(run), "--without", "gamma"]) == 0
    assert f"no speed was measured of gamma:0{since}\n" in capsys.readouterr().out


def test_where_shares_vary_a_time_per_sample_is_the_ratio_of_sums(tmp_path, capsys):
    """Each round took what it got done in the same time: no time is one without samples."""
    members = msgspec.structs.replace(START[1], shares_vary=True)
    rounds = exchanges(1, 0, *[10, 20, 30, 40] * 2)
    events = [NodesPriced(per_hour={"alpha": 1, "gamma": 1}), START[0], members, *rounds]
    run = record(tmp_path / "run", [(number / 50, event) for number, event in enumerate(events)])
    gamma = share_times(read_run(run)).times[GAMMA]
    assert [time.busy_seconds / time.share for time in gamma[-2:]] == pytest.approx([3e-3, 2.25e-3])
    samples = sum(time.share * time.num_steps for time in gamma)
    seconds = sum(time.busy_seconds * time.num_steps for time in gamma)
    assert (samples, seconds) == pytest.approx((10 * 200, 80 * 0.09))
    per_sample = f"{1e3 * seconds / samples:.4f} ms"
    said = told(capsys, run, "--for", "money")
    assert f"gamma:0: 0.00 ms a step and {per_sample} a sample" in said
    assert "with more samples" not in said
    assert main(["cost", str(run), "--without", "alpha"]) == 0
    assert f"gamma:0: {per_sample} per sample, over all its samples" in capsys.readouterr().out


def test_one_that_has_no_place_is_not_said_to_be_declined(tmp_path, monkeypatch, capsys):
    """It is refused in a line, and what was declined before stays so."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(declined, "MAX_IDS", 1)
    assert main(["advise", "--decline", "idle:b:0"]) == 0
    assert main(["advise", "--decline", "idle:c:0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "would hold 2 IDs, and may hold 1: take some back by --recall" in line
    assert declined.ids() == {"idle:b:0"}
