"""What is exported has the names, types and labels with which it is scraped."""

import math

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.metric_names import EXPORTED, PREFIX
from hetero_hvd.messages import DeviceSample, NodeSampled
from hetero_hvd.probes.machine.node_metrics import node_registry
from hetero_hvd.run.recordings.frames import RecordedFrame
from hetero_hvd.run.sinks.destinations.openmetrics_file import OpenMetricsFile
from hetero_hvd.run.sinks.recorded_frames import samples_of_frames
from hetero_hvd.run.sinks.sample import LiveSamples
from hetero_hvd.run.web.scraping.exposition import exposition
from tests.run.web.scraping.test_metrics import ACCEPTED, HISTORY, replayed

OPENMETRICS = ACCEPTED["prometheus 2.42"][0]


def told(kind, **own):
    """A sample of which every figure is known."""
    fields = msgspec.structs.fields(kind)
    floats = {f.name: 1.0 for f in fields if isinstance(f.default, float) and math.isnan(f.default)}
    return replace(kind(), **floats, **own)


GPU = told(
    DeviceSample,
    uuid="g",
    name="H",
    throttle_reasons=("power",),
    throttled_seconds={"power": 1.0},
    xid=79,
    num_xids=1,
)
NODE = told(NodeSampled, node="alpha", devices=(GPU,))


def of_a_run():
    """The samples of a run in which everything happens, and what a scraper is told of it."""
    live = LiveSamples()
    events = list(with_tables((1000.0, event) for event in HISTORY))
    samples = [sample for at, event in events for sample in live.take(at, event)]
    return [*samples, *live.rest()], replayed(*HISTORY).render(OPENMETRICS)


def of_a_recording():
    """The samples of a node with a GPU, and what its exporter tells."""
    frame = RecordedFrame("alpha", "s", Recorded(1, 10**9, msgspec.msgpack.encode(NODE)))
    registry = node_registry(lambda: [NODE], "r")
    return list(samples_of_frames([frame])), exposition(registry, OPENMETRICS)


def families(text):
    """(name of a sample, type, names of labels) of all that is there."""
    return {
        (sample.name, family.type, tuple(sorted(sample.labels)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("source", [of_a_run, of_a_recording])
def test_an_export_has_the_names_of_a_scrape(source, tmp_path):
    """And no other ones, but those that are listed; of a recording it has all of them."""
    samples, scraped = source()
    sink = OpenMetricsFile(f"openmetrics:{tmp_path / 'file'}")
    sink.begin(replace(HISTORY[0], run_id="r"))
    sink.write(samples)
    sink.end("done")
    exported = families((tmp_path / "file").read_text())
    scraped = families(scraped.page.decode())
    listed = {
        (PREFIX + entry.family, entry.kind, tuple(sorted(("run_id", *entry.labels))))
        for entry in EXPORTED
    }
    own = {PREFIX + sample.family for sample in samples}
    assert {name for name, _, _ in exported} == own
    assert exported - scraped == (listed if source is of_a_run else set())
    assert source is of_a_run or exported == scraped
