"""A real job that keeps its checkpoints in an object store; another node goes on from there."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from tests.kit.object_servers import BUCKET, object_server

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).with_name("train_logging.py")
URL = f"s3://{BUCKET}/runs/one"


def test_any_node_goes_on_from_an_object_store(start_job, tmp_path, monkeypatch):
    """The job is killed as a whole; another one, on another node, has only the address.

    No secret of the store is in what either says or writes.
    """
    pytest.importorskip("s3fs")
    with object_server("s3", tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        settings = "--checkpoint-url", URL, "--checkpoint-seconds", "0.2"
        job = start_job(*settings, "--output", "out", names=("alpha",), command=(str(SCRIPT), "50"))
        job.wait_for(r"step [3-9]\d: evaluation after epoch")  # is told of each, whatever it takes
        os.killpg(job.process.pid, signal.SIGKILL)
        job.wait()
        assert not (tmp_path / "out" / "checkpoints").exists()
        for order in (URL, "out"):
            again = start_job(
                *("--resume", order, *settings, "--output", f"after-{Path(order).name}"),
                names=("beta",),
                command=(str(SCRIPT), "50"),
            )
            found = again.wait_for(r"has found (\S+): step (\d+)")
            assert found[1].startswith(f"{URL}/step-")
            assert int(found[2]) > 0
            again.process.send_signal(signal.SIGINT)
            assert again.wait() == 130
            assert server.environment["AWS_SECRET_ACCESS_KEY"] not in "\n".join(again.output)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert server.environment["AWS_SECRET_ACCESS_KEY"].encode() not in path.read_bytes()


def test_an_address_of_no_store_is_one_line(tmp_path, monkeypatch, capsys):
    """Before anything is started; also that of an earlier run."""
    monkeypatch.chdir(tmp_path)
    Path("nodes.yaml").write_text("nodes: [{name: alpha}]\n")
    Path("x.py").touch()
    for flag in ("--checkpoint-url", "--resume"):
        for url in ("ftp://host/runs", "s3://", "s3://me:word@bucket", "file://relative"):
            with suppress(SystemExit):
                assert main(["run", flag, url, "--", "x.py"]) == 2
            error = capsys.readouterr().err
            assert f"{flag}: " in error
            assert "must be a URL such as s3://bucket/path" in error
            assert error.strip().splitlines()[-1].count("must be") == 1
