"""What NCCL says in the logs of a run, in its report."""

from __future__ import annotations

import json

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.messages import RunEnded
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.reports.nccl import nccl_of

SAID = (
    "alpha:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
    "alpha:1:2 [0] NCCL INFO Channel 00/02 :    0   1",
    "alpha:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
)


@pytest.fixture
def run(tmp_path):
    """The folder of a run."""
    recorder = Recorder(tmp_path)
    recorder.observe(0.0, RunEnded(exit_code=0, reason="done"))
    recorder.close()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text("\n".join(SAID))
    return tmp_path


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize("name", ["node-a-0.log", "node-a-0.log.1"])
def test_the_report_tells_of_rings_and_transports(run, capsys, is_json, name):
    """From logs of text and of JSON lines, and from what was put aside; not the driver's."""
    lines = ["step 0", *SAID]
    lines = (
        [json.dumps({"message": line, "node": "node-a"}) for line in lines] if is_json else lines
    )
    (run / "logs" / "node-a-0.log").write_text("")
    (run / "logs" / name).write_text("\n".join(lines))
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr().out
    assert "node-a:0: NCCL 2.21.5+cuda12.4; connections by P2P/IPC x 1" in said
    assert "node-a:0: ring of ranks 0 1 in 1 channel" in said
    assert main(["report", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["nccl"]["node-a:0"]
    assert found["transports"] == {"P2P/IPC": 1}
    assert found["rings"] == {"0": [0, 1]}


def test_without_logs_nothing_is_said(run, capsys):
    """Nor where a log is no file."""
    (run / "logs" / "alpha-0.log").mkdir()
    (run / "logs" / "beta-0.log").write_bytes(b"\xff\x00" * 50_000)
    assert nccl_of(run) == {}
    assert msgspec.json.encode(nccl_of(run)) == b"{}"
    assert main(["report", str(run)]) == 0
    assert "NCCL" not in capsys.readouterr().out
