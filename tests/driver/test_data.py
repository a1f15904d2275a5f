"""Real jobs on data that are not the same everywhere."""

import json
import re
import shutil
import signal
import sqlite3
import threading
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.data import TarShards, write_index
from tests.driver.conftest import write_nodes
from tests.kit.data.faulty_proxy import faulty_proxy
from tests.kit.data.images import write_images
from tests.kit.data.shards import write_shards

pytestmark = pytest.mark.process
SCRIPT = str(Path(__file__).with_name("data_folder.py"))
NAMES = ("alpha", "beta", "gamma")


def folders(tmp_path, spoil):
    """A copy of the same images for each node; `spoil` changes beta's."""
    for name in NAMES:
        write_images(tmp_path / name, classes=("cat", "dog"), each=12)
    spoil(tmp_path / "beta")
    return str(tmp_path / "{node}")


def test_a_node_with_another_file_is_refused_and_the_others_train(start_job, tmp_path):
    """At the start: by name, with the file; the others train to the end, each sample once."""
    url = folders(tmp_path, lambda folder: (folder / "dog" / "3.png").unlink())
    job = start_job(command=(SCRIPT, url, "3"), start_timeout_seconds=60)
    line = job.wait_for(r"beta:0 is refused")[0]
    assert job.wait() == 0, job.output
    (line,) = [line for line in job.output if "is refused" in line]
    assert "its data differ from those of alpha:0: images at" in line
    assert "dog/3.png is missing (23 files, " in line
    assert "there 24 files, " in line
    assert any("2 workers train together" in line for line in job.output)
    assert job.summary()["steps"] == 6
    assert job.summary()["replicas_equal"] is True


def test_a_newcomer_with_another_file_is_refused(start_job, tmp_path):
    """While the others train, who go on without it."""
    url = folders(tmp_path, lambda folder: shutil.copy(folder / "cat/1.png", folder / "cat/x.png"))
    job = start_job(
        "--progress-seconds", "0.2", names=("alpha", "gamma"), command=(SCRIPT, url, "4000")
    )
    job.wait_for(r"step [1-9]\d*  epoch")
    write_nodes(job.nodes_file, NAMES)
    line = job.wait_for(r"beta:0 is refused .*cat/x.png is one too many").string
    assert "(25 files, " in line
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert not any("3 workers train together" in line for line in job.output)


@pytest.mark.parametrize("processes", [pytest.param("0", marks=pytest.mark.matrix), "1"])
def test_the_source_that_is_waited_for_is_named(start_job, tmp_path, capsys, processes):
    """In the verdict, in the report and among the metrics; reading is told from decoding."""
    folder = tmp_path / "images"
    write_images(folder, classes=("cat", "dog"), each=12)
    job = start_job(names=("alpha", "beta"), command=(SCRIPT, str(folder), "10", processes, "0.04"))
    assert job.wait() == 0, job.output
    verdict = [line for line in job.output if "bound by" in line][-1]
    if "bound by contention" not in verdict:  # which a busy machine has beside it
        assert "bound by input" in verdict
        assert f"of that wait is for {folder}, of which decoding its samples takes " in verdict
    assert main(["report", str(tmp_path / "out")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if f"data {folder}: " in line]
    assert [line.split()[0] for line in lines] == ["alpha:0", "beta:0"]
    decoded = sum(float(re.search(r"decoded in ([\d.]+) s", line)[1]) for line in lines)
    assert decoded >= 10 * 24 * 0.04


def test_shards_are_read_in_parts_and_each_sample_once(start_job, tmp_path):
    """By two workers with loader processes: a sample is read by who uses it, and by no other."""
    write_shards(tmp_path / "shards", [9, 4, 12])
    write_index(tmp_path / "shards")
    script = str(Path(__file__).with_name("data_shards.py"))
    job = start_job(names=("alpha", "beta"), command=(script, str(tmp_path / "shards"), "3"))
    assert job.wait() == 0, job.output
    seen = {epoch: [] for epoch in "012"}
    num_batches = dict.fromkeys(("[alpha:0]", "[beta:0]"), 0)
    for line in job.output:
        if found := re.fullmatch(r"(\S+) epoch (\d) seen (.*)", line):
            seen[found[2]] += map(int, found[3].split())
            num_batches[found[1]] += 1
    assert {epoch: sorted(numbers) for epoch, numbers in seen.items()} == {
        epoch: list(range(25)) for epoch in "012"
    }
    assert all(num_batches.values())
    with closing(sqlite3.connect(tmp_path / "out" / "run.sqlite")) as records:
        rows = records.execute("SELECT body FROM events WHERE kind = 'SourcesRead'").fetchall()
    read = sum(one["num_bytes"] for (b,) in rows for one in json.loads(b)["sources"].values())
    shards = TarShards(tmp_path / "shards")
    of_indices = sum(path.stat().st_size for path in (tmp_path / "shards").glob("*.index"))
    once = 3 * sum((shards._stops - shards._starts).tolist()) + 2 * of_indices
    assert once <= read <= once + 8 * 2560  # a step that is taken again is read again


@pytest.mark.timeout(900)
def test_a_stream_in_shards_is_read_in_parts_and_each_sample_once(start_job):
    """By two workers, who read together much less than the stream twice; a connection is lost.

    A third one has the samples in another order, and is refused.
    """
    script = str(Path(__file__).with_name("data_stream.py"))
    names = ["alpha, env: {STREAM: lost}", "beta, env: {STREAM: lost}"]
    names += ["gamma, env: {STREAM: reversed}"]
    # All three are compared: who is ready first, on a busy machine, may be the one that is refused.
    # And no share moves: what a worker reads anew follows from the loss alone.
    patient = {"start_timeout_seconds": 600, "balance": False}
    job = start_job(names=names, command=(script, "3"), **patient)
    assert job.wait(600) == 0, job.output
    (line,) = [line for line in job.output if "is refused" in line]
    assert line.startswith("gamma:0 is refused (its data differ from those of alpha:0: ")
    assert "StreamShards(ShardedStream): shard 0 has other contents" in line
    assert any("a connection is lost" in line for line in job.output)
    seen = {epoch: [] for epoch in "012"}
    num_read = []
    for line in job.output:
        if found := re.fullmatch(r"\S+ epoch (\d) seen (.*)", line):
            seen[found[1]] += map(int, found[2].split())
        if found := re.fullmatch(r"\S+ read (\d+)", line):
            num_read.append(int(found[1]))
    assert {epoch: sorted(numbers) for epoch, numbers in seen.items()} == {
        epoch: list(range(160)) for epoch in "012"
    }
    assert len(num_read) == 2
    assert sum(num_read) <= 1.5 * 3 * 160 + 40  # from the beginning, after a loss


@contextmanager
def served(folder):
    """A web server of a folder, and a proxy in front of it for each node."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Nothing is told."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with ExitStack() as stack:
            url = f"http://127.0.0.1:{server.server_port}"
            yield [stack.enter_context(faulty_proxy(url)) for _ in range(2)]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("processes", [pytest.param("0", marks=pytest.mark.matrix), "1"])
def test_a_node_that_cannot_read_its_data_is_refused_in_one_line(start_job, tmp_path, processes):
    """In the middle of training, also by a loader process; the others go on with its samples."""
    write_images(tmp_path / "images", classes=("cat", "dog"), each=12)
    with served(tmp_path) as proxies:
        names = [
            f"{name}, env: {json.dumps({'DATA_URL': f'{proxy.url}/images'})}"
            for name, proxy in zip(NAMES, proxies, strict=False)
        ]
        job = start_job(
            *("--progress-seconds", "0.2"), names=names, command=(SCRIPT, "", "20", processes)
        )
        job.wait_for(r"step [1-9]\d*  epoch")
        proxies[1].spoil(".png", "fail", 10**6)
        line = job.wait_for(r"beta:0 is refused \(.*\.png: reading has failed: ").string
        assert "(after 2 attempts)" in line
        assert proxies[1].left(".png") < 10**6
        assert job.wait() == 0, job.output
    assert not any("Traceback" in line for line in job.output)
    assert job.summary()["steps"] == 40
    assert job.summary()["replicas_equal"] is True


BAD_DATA = {
    "no folder": (lambda _: None, "data at {folder}: not found: "),
    "no images": (lambda folder: folder.mkdir(), "data at {folder}: no .bmp, "),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.matrix] * (case != "no images")) for case in BAD_DATA],
)
def test_data_that_cannot_be_opened_end_the_job_in_one_line(start_job, tmp_path, case):
    """Before there is a trainer: no worker is started again, and nothing has a traceback."""
    spoil, words = BAD_DATA[case]
    spoil(tmp_path / "images")
    job = start_job(names=NAMES[:1], command=(SCRIPT, str(tmp_path / "images"), "3"))
    assert job.wait() == 2, job.output
    said = [line for line in job.output if words.format(folder=tmp_path / "images") in line]
    assert said
    assert all("(data_folder.py:" in line for line in said)
    assert not any("Traceback" in line or "again" in line for line in job.output)
    assert "images" in job.summary()["reason"]


READS_EARLY = """
import os
import torch
import hetero_hvd
from hetero_hvd.data import TextBlocks

texts = TextBlocks(os.environ["DATA_URL"], 4, cache_bytes=0, attempts=1)
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(texts, batch_size=8)
trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for _ in trainer.epochs(2):
    for x in trainer.batches():
        trainer.step(lambda x: model(x.float()).mean(), x)
"""


@pytest.mark.parametrize("num_failing", [1, 2])
def test_a_node_that_cannot_read_its_data_before_it_trains_is_refused(
    start_job, tmp_path, num_failing
):
    """It is not started again, and the others train; where no node can, the job ends."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "x.txt").write_text("a text of some length, " * 8)
    script = tmp_path / "train.py"
    script.write_text(READS_EARLY)
    with served(tmp_path) as proxies:
        names = [
            f"{name}, env: {json.dumps({'DATA_URL': f'{proxy.url}/texts'})}"
            for name, proxy in zip(NAMES, proxies, strict=False)
        ]
        for proxy in proxies[-num_failing:]:
            proxy.spoil("x.txt", "fail", 10**6)
        job = start_job(names=names, command=(str(script),))
        assert job.wait() == (0 if num_failing == 1 else 75), job.output
        assert [10**6 - proxy.left("x.txt") for proxy in proxies[-num_failing:]] == [
            1
        ] * num_failing
    words = r"beta:0 is refused \(.*x\.txt: reading has failed: .* \(train\.py:7\)"
    assert any(re.search(words, line) for line in job.output) or num_failing == 2
    assert not any("Traceback" in line for line in job.output)
    if num_failing == 2:
        assert "x.txt: reading has failed: " in job.summary()["reason"]
