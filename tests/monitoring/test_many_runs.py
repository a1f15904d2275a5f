"""One Prometheus watches all runs of a machine: those that come, while they are there."""

import asyncio
import os
import shutil
import threading

import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.messages import RunEnded, RunStarted, WorkerId, WorkersJoined
from hetero_hvd.monitoring.files import WatchedPlaces
from hetero_hvd.run.records.run_files import lock_folder
from hetero_hvd.run.web import Web
from hetero_hvd.run.web.app import Sources
from hetero_hvd.run.web.scraping.metrics import Metrics
from hetero_hvd.run.web.scraping.targets import run_target
from tests.monitoring.prometheus_rig import Prometheus

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus")


class Run:
    """The page of a run of one worker, in the loop of a thread.

    Args:
        folder: Of the run; held while it lasts.
        digits: Of its id: another start has other ones.
    """

    def __init__(self, folder, digits="1a2b3c4d"):
        folder.mkdir(exist_ok=True)
        self._held = lock_folder(folder)
        run_id = f"{folder.name}-{digits}"
        self.metrics = Metrics(run_id)
        self.tell(RunStarted(run_id=run_id, command=("x",), nodes=("alpha",), settings={}))
        self.tell(
            WorkersJoined(
                rendezvous_id=1, workers=(WorkerId("alpha", 0),), applied_steps=0,
                global_batch_size=8, capacities=(-1,), prefetch_steps=0,
            )
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._web = Web(JobConfig(), folder)
        sources = Sources(
            state=lambda: None, num_events=lambda: 1, status=dict, drain=str, stop=str,
            targets=lambda: [run_target(self._web.url, run_id)], metrics=self.metrics.render,
        )  # fmt: skip
        self._call(self._web.listen(sources))

    def tell(self, event):
        """Something happens."""
        self.metrics.observe(1000.0, event)

    def _call(self, work):
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def close(self):
        """It is over, and its page is gone."""
        self._call(self._web.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        os.close(self._held)


@pytest.mark.matrix  # Prometheus takes up to 5 s for each that comes or goes
@pytest.mark.timeout(240)
def test_runs_come_and_go_while_prometheus_goes_on(tmp_path):
    """Each is told apart by its label; nobody starts anything anew, and no alert is left."""
    runs = tmp_path / "runs"  # is not there when Prometheus starts
    prometheus = Prometheus(tmp_path, WatchedPlaces(runs=str(runs)))
    try:
        runs.mkdir()
        first = Run(runs / "first")
        prometheus.wait_for("hetero_hvd_world_size", "run", ["first"])
        second = Run(runs / "second")
        prometheus.wait_for("hetero_hvd_world_size", "run", ["first", "second"])
        first.tell(RunEnded(exit_code=0, reason="done"))
        prometheus.wait_for("hetero_hvd_run_active == 0", "run", ["first"])
        first.close()
        prometheus.wait_for("up", "run", ["second"])
        again = Run(runs / "first", "99999999")
        prometheus.wait_for(
            "hetero_hvd_run_active", "run_id", ["first-99999999", "second-1a2b3c4d"]
        )
        assert prometheus.found("ALERTS") == []
        second.close()
        again.close()
        prometheus.wait_for("up", "run", [])
    finally:
        prometheus.close()
