"""The balancer in a worker's own process, where there is no driver."""

from __future__ import annotations

import sys

from hetero_hvd.config.variables import RecordConfig
from hetero_hvd.messages import WorkerId, WorkersJoined
from hetero_hvd.worker.lead.recording import Recording
from hetero_hvd.worker.lead.settings import LeadSettings
from hetero_hvd.worker.session.plan_source import LeadPlanner


def test_each_trainer_of_a_script_has_its_own_grain(monkeypatch):
    """That of the one before would leave the whole batch to one worker."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    settings = LeadSettings(record=RecordConfig(record=False))
    recording = Recording(settings, WorkerId("a", 0), progress=int)
    planner = LeadPlanner(recording)
    found = []
    for number, grain in enumerate((8, 8, 1), start=1):
        planner.use_grain(grain)
        event = WorkersJoined(
            rendezvous_id=number,
            workers=(WorkerId("a", 0), WorkerId("b", 0)),
            applied_steps=0,
            global_batch_size=8,
            capacities=(-1, -1),
            prefetch_steps=0,
        )
        found.append(sorted(planner.joined(event).local_batch_sizes))
    assert found == [[0, 8], [0, 8], [4, 4]]
    recording.end()
    recording.close()
