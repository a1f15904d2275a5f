"""What a run's page reads from the disk."""

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.web import recorded

NAMES = {"a": "same", "b": "same"}


def test_of_many_runs_the_newest_are_listed(tmp_path, monkeypatch):
    """Whatever their folders are called; one without a start is older than all."""
    monkeypatch.setattr(recorded, "MAX_RUNS", 3)
    for began, name in enumerate(("z", "y", "a", "b", "x")):
        (tmp_path / name).mkdir()
        recorder = Recorder(tmp_path / name)
        started = RunStarted(
            run_id=name, name=NAMES.get(name, ""), command=("x",), nodes=(), settings={}
        )
        recorder.observe(float(began + 1), started)
        recorder.close()
    (tmp_path / "zz").mkdir()
    (tmp_path / "zz" / "run.sqlite").write_bytes(b"nothing of the kind")
    found = recorded.runs_beside(tmp_path / "a")
    assert [(run.folder, run.label, run.is_this) for run in found] == [
        ("x", "x", False),
        ("b", "same (b)", False),
        ("a", "same (a)", True),
    ]
