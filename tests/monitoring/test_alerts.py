"""Each alert fires once for its trouble, whatever comes between, and for nothing else."""

import json
import re
import shutil
from pathlib import Path

import pytest

from hetero_hvd.deploy.folder import FolderContents, write_folder
from hetero_hvd.exit_codes import EXIT_KILLED, EXITS_BY_PEOPLE
from hetero_hvd.monitoring.files import RULES, WatchedPlaces, stack_files
from tests.monitoring.test_files import promtool

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: apt install prometheus"
)

STEP_SECONDS = 30
MINUTE = 60 // STEP_SECONDS
END = 60 * MINUTE
GPU = '{run_id="RUN_ID",node="n",device="0",uuid="g"}'
STALE = "stale"


def gauge(usual, bad):
    """Has another value in trouble."""
    return lambda troubles: [bad if is_bad else usual for is_bad in troubles]


def counter(added):
    """Grows in trouble."""

    def values(troubles):
        total, found = 0.0, []
        for is_bad in troubles:
            total += added if is_bad else 0
            found.append(total)
        return found

    return values


def stamp(troubles):
    """A time that stands still in trouble."""
    at, found = 0, []
    for number, is_bad in enumerate(troubles):
        at = at if is_bad else number * STEP_SECONDS
        found.append(at)
    return found


TROUBLES = {
    "HeteroHvdStraggler": ('stragglers{run_id="RUN_ID",run="r",cause="input"}', gauge(0, 1)),
    "HeteroHvdRestarts": ('restarts_total{run_id="RUN_ID",run="r"}', counter(1)),
    "HeteroHvdStalled": ('last_step_timestamp_seconds{run_id="RUN_ID",run="r"}', stamp),
    "HeteroHvdOutOfMemory": ('oom_total{run_id="RUN_ID",run="r"}', counter(1)),
    "HeteroHvdCheckpointFailed": (
        'checkpoint_failures_total{run_id="RUN_ID",run="r"}',
        counter(1),
    ),
    "HeteroHvdImbalanced": ('load_imbalance_ratio{run_id="RUN_ID",run="r"}', gauge(0.1, 0.5)),
    "HeteroHvdLostWorkers": ('world_size{run_id="RUN_ID",run="r"}', gauge(3, 2)),
    "HeteroHvdGuardDrained": ('guard_drained_devices{run_id="RUN_ID",run="r"}', gauge(0, 1)),
    "HeteroHvdGuardRefused": ('guard_refused_devices{run_id="RUN_ID",run="r"}', gauge(0, 1)),
    "HeteroHvdAilsAgain": (
        'guard_episodes_total{run_id="RUN_ID",run="r",reason="temperature"}',
        counter(1),
    ),
    "HeteroHvdHot": (f"gpu_temperature_celsius{GPU}", gauge(86, 90)),
    "HeteroHvdThrottled": (
        f'gpu_throttled_seconds_total{GPU[:-1]},reason="power"}}',
        counter(STEP_SECONDS),
    ),
    "HeteroHvdGpuErrors": (f'gpu_errors_total{GPU[:-1]},kind="xid"}}', counter(1)),
    "HeteroHvdQueueWait": (
        'queue_longest_wait_seconds{pool="p",hub="RUN_ID"}',
        gauge(3 * 3600, 5 * 3600),
    ),
}
"""Alert to the series that it watches, and what that is in trouble."""


class Story:
    """What is scraped of a run over an hour, with a value each 30 s.

    Args:
        starts: Of each start of it: minutes from when to when its driver lives, and the exit code
            that its last two scrapes tell; None: it is killed.
        is_bad: Whether there is trouble at a minute.
        unseen: Minutes from when to when no scrape succeeds.
        fires: How often each alert begins to fire; those that are not named never do.
        may_fire: Whether the others may fire once.
    """

    def __init__(
        self,
        starts=((0, 60, None),),
        *,
        is_bad=lambda _: False,
        unseen=(-1, -1),
        fires=None,
        may_fire=False,
    ):
        self._starts = starts
        self._is_bad = is_bad
        self._unseen = unseen
        self.fires = fires or {}
        self.may_fire = may_fire

    def series(self):
        """As promtool reads it."""
        for number, (begin, end, exit_code) in enumerate(self._starts):
            life = range(begin * MINUTE, end * MINUTE)
            troubles = [self._is_bad(at / MINUTE) for at in range(END)]
            last = set(life[-2:]) if exit_code is not None else set()
            told = {series: values(troubles) for series, values in TROUBLES.values()}
            own = '{run_id="RUN_ID",run="r"}'
            told[f"run_active{own}"] = [0 if at in last else 1 for at in range(END)]
            told[f"run_start_timestamp_seconds{own}"] = [begin * 60] * END
            told[f"run_exit_code{own}"] = [exit_code if at in last else STALE for at in range(END)]
            for name, values in told.items():
                shown = " ".join(
                    str(value) if at in life and not self._is_unseen(at) else STALE
                    for at, value in enumerate(values)
                )
                text = f"hetero_hvd_{name.replace('RUN_ID', f'r-{number}')}"
                yield {"series": text, "values": shown}

    def _is_unseen(self, at):
        begin, end = self._unseen
        return begin * MINUTE <= at < end * MINUTE


def during(begin, end, period_minutes=0.0):
    """Trouble from minute to minute: all the time, or every other half period."""

    def is_bad(minute):
        half = period_minutes / 2
        return begin <= minute < end and (not half or (minute - begin) % period_minutes < half)

    return is_bad


ONCE = dict.fromkeys(TROUBLES, 1)
LOST = {"HeteroHvdDriverLost": 1}
STORIES = {
    "nothing happens": Story(),
    "its trouble": Story(is_bad=during(10, 30), fires=ONCE),
    "its trouble while scrapes fail": Story(is_bad=during(10, 40), unseen=(24, 24.5), fires=ONCE),
    "trouble to and fro in a minute": Story(is_bad=during(10, 40, 1), may_fire=True),
    "trouble to and fro in four minutes": Story(is_bad=during(10, 40, 4), may_fire=True),
    "trouble to and fro in five minutes": Story(is_bad=during(10, 40, 5), may_fire=True),
    "a short gap of scrapes": Story(unseen=(20, 20.5)),
    "a gap of scrapes in the middle": Story(unseen=(20, 24), fires=LOST),
    "the end": Story([(0, 20, 0)]),
    **{f"stopped with exit code {code}": Story([(0, 20, code)]) for code in EXITS_BY_PEOPLE},
    "killed": Story([(0, 20, EXIT_KILLED)], fires={"HeteroHvdFailed": 1}),
    "a failure": Story([(0, 20, 1)], fires={"HeteroHvdFailed": 1}),
    "a failure, and it is gone on with": Story(
        [(0, 20, 1), (22, 60, None)], fires={"HeteroHvdFailed": 1}
    ),
    "the driver dies": Story([(0, 20, None)], fires=LOST),
    "the driver dies in trouble": Story(
        [(0, 30, None)], is_bad=during(10, 30), fires={**ONCE, **LOST}
    ),
    "the driver is started anew at once": Story([(0, 20, None), (21, 60, None)], may_fire=False),
    "the driver is started anew": Story([(0, 20, None), (25, 60, None)], fires=LOST),
    "started anew, and the end": Story([(0, 20, None), (25, 40, 0)], fires=LOST),
    "Ctrl-C, gone on with, and the driver dies": Story([(0, 20, 130), (25, 40, None)], fires=LOST),
    "the driver dies twice": Story(
        [(0, 20, None), (25, 40, None), (45, 60, None)], fires={"HeteroHvdDriverLost": 2}
    ),
}


def begun(alerts):
    """How often each has begun to fire, for any series."""
    firing = 'sum by (alertname) (ALERTS{alertstate="firing"})'
    none = (f'label_replace(vector(0), "alertname", "{alert}", "", "")' for alert in alerts)
    over = f"({' or '.join([firing, *none])})[59m:{STEP_SECONDS}s]"
    return f"changes({over}) - resets({over})"


def expected(story, alerts):
    """As promtool reads it."""
    if story.may_fire:
        query, wanted = f"{begun(alerts)} > 1", {}
    else:
        query, wanted = begun(alerts), {alert: story.fires.get(alert, 0) for alert in alerts}
    samples = [{"labels": f'{{alertname="{name}"}}', "value": n} for name, n in wanted.items()]
    return {"expr": query, "eval_time": "59m", "exp_samples": samples}


def test_each_alert_fires_once_for_its_trouble_and_for_nothing_else(tmp_path):
    """By promtool; what goes on in between begins no alert anew."""
    files = stack_files(WatchedPlaces(runs="/runs"))
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    assert set(alerts) == {*TROUBLES, "HeteroHvdDriverLost", "HeteroHvdFailed"}
    stories = {
        "rule_files": ["gpu_rules.yml", "rules.yml"],
        "evaluation_interval": f"{STEP_SECONDS}s",
        "tests": [
            {
                "name": name,
                "interval": f"{STEP_SECONDS}s",
                "input_series": list(story.series()),
                "promql_expr_test": [expected(story, alerts)],
            }
            for name, story in STORIES.items()
        ],
    }
    files["stories.yml"] = json.dumps(stories)
    write_folder(tmp_path / "stack", FolderContents(files=files))
    promtool("test", "rules", "stories.yml", folder=tmp_path / "stack")


def test_the_page_tells_of_each_alert():
    """With its severity."""
    page = Path(__file__).parents[2] / "docs" / "operations" / "monitoring.md"
    told = re.findall(r"^\| `(HeteroHvd\w+)` \| (\w+) \|", page.read_text(), re.MULTILINE)
    alerts = re.findall(r"alert: (\w+)\n.*?severity: (\w+)", RULES.read_text(), re.DOTALL)
    assert sorted(told) == sorted(alerts)
