"""What Grafana is to show: in its own types, of metrics that there are."""

import json
import re
import shutil
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetero_hvd.core.view.metric_names import PREFIX, QUEUE, RUN, WORKER
from hetero_hvd.core.view.sample_metrics import DEVICE, NODE
from hetero_hvd.messages import NodeSampled, WorkerId, WorkersJoined
from hetero_hvd.monitoring.dashboards import ANNOTATIONS, COLUMNS, VARIABLES, dashboards
from hetero_hvd.monitoring.files import RULES
from hetero_hvd.monitoring.gpu_rules import RECORDED, gpu_rules
from hetero_hvd.monitoring.panels import PANELS, PanelKind
from hetero_hvd.run.web.scraping.metrics import Metrics
from tests.monitoring.test_files import promtool
from tests.run.sinks.test_names import NODE as SAMPLE

DASHBOARDS = dashboards()
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")
METRICS = {
    name
    for entry in (*RUN, *WORKER, *QUEUE, *NODE, *DEVICE)
    for name in (
        [entry.exported + part for part in OF_A_HISTOGRAM]
        if entry.kind == "histogram"
        else [entry.exported]
    )
}
RECORDS = {rule["record"]: rule["expr"] for rule in gpu_rules()["groups"][0]["rules"]}


def queries(name):
    """Of all panels of a dashboard."""
    return [query.expr for panel in PANELS[name] for query in panel.queries]


def metrics_in(query):
    """Ours that a query names; in the place of a recorded series those of which it is made."""
    for record, made_of in RECORDS.items():
        query = re.sub(rf"{re.escape(record)}\b", lambda _, text=made_of: text, query)
    assert RECORDED not in query
    return set(re.findall(rf"\b{PREFIX}\w+", query))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_knows_all_that_is_in_it(name):
    """Read into the types of its own schema and written again nothing is missing."""
    runtime = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    plugins.register_default_plugins()
    content = json.loads(json.dumps(DASHBOARDS[name]))
    read = models.Dashboard.from_json(content)
    written = json.loads(runtime.JSONEncoder(sort_keys=True).encode(read))
    assert list(lost(content, written)) == []


def lost(before, after, place=""):
    """Where something of the one is not in the other."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after or value is not None:
                yield from lost(value, after.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from lost(*pair, f"{place}[{number}]")
    elif before != after:
        yield place, before, after


def test_a_key_that_grafana_does_not_know_is_found():
    """Else the test before could not fail."""
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder").JSONEncoder()
    plugins.register_default_plugins()
    wrong = {"panels": [{"type": "stat", "title": "x", "options": {"colorMod": "value"}}]}
    written = json.loads(encoder.encode(models.Dashboard.from_json(wrong)))
    assert [place for place, *_ in lost(wrong, written)] == [".panels[0].options.colorMod"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="apt install prometheus")
def test_each_query_can_be_read_by_prometheus(tmp_path):
    """Of panels and annotations, with values in the place of variables."""
    found = [query for name in PANELS for query in queries(name)] + [*ANNOTATIONS.values()]
    ready = [re.sub(r"\$\w+", "1m", query) for query in found]
    rules = [{"record": f"r{number}", "expr": query} for number, query in enumerate(ready)]
    text = json.dumps({"groups": [{"name": "panels", "rules": rules}]})
    (tmp_path / "panels.yml").write_text(text)
    promtool("check", "rules", "panels.yml", folder=tmp_path)


def test_each_metric_is_one_of_the_table():
    """Also those of variables, annotations, rules and alerts."""
    text = " ".join(query for name in PANELS for query in queries(name))
    text += " ".join([*ANNOTATIONS.values(), *(found.query for found in VARIABLES.values())])
    text += re.sub(r"run_id:[\w:]+", "", RULES.read_text())
    assert metrics_in(text) <= METRICS
    assert len(metrics_in(text)) > 50


def test_the_cluster_is_told_by_the_driver_alone():
    """Where nodes are reached by ssh only and no agent has an exporter."""
    metrics = Metrics("out-1a2b3c4d", max_age_seconds=1e9)
    metrics.observe(
        1000.0,
        WorkersJoined(
            rendezvous_id=1, workers=(WorkerId("alpha", 0),), applied_steps=0,
            global_batch_size=8, capacities=(-1,), prefetch_steps=0,
        ),
    )  # fmt: skip
    metrics.observe(1000.0, SAMPLE)
    assert isinstance(SAMPLE, NodeSampled)
    page = metrics.render().page.decode()
    told = {s.name for family in text_string_to_metric_families(page) for s in family.samples}
    of_nodes = {entry.exported for entry in (*NODE, *DEVICE)}
    wanted = metrics_in(" ".join(queries("cluster"))) & of_nodes
    assert len(wanted) >= 12
    assert wanted <= told


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_their_place_and_say_what_they_tell(name):
    """None lies on another; each has a title of its own and a description."""
    panels = DASHBOARDS[name]["panels"]
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < COLUMNS
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    assert all(panel["description"].endswith(".") for panel in panels)
    listed = {one["name"] for one in DASHBOARDS[name]["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", " ".join(queries(name)))) - {"__rate_interval"}
    assert used <= listed


def test_every_kind_of_panel_is_there():
    """And no other one."""
    kinds = {panel["type"] for one in DASHBOARDS.values() for panel in one["panels"]}
    assert kinds == set(get_args(PanelKind))


@pytest.mark.parametrize(("text", "value"), [("0", "alpha:0"), ("12", "a b:3")])
def test_a_worker_is_chosen_by_its_rank(text, value):
    """As Grafana takes the answer of a query apart."""
    answer = f'{PREFIX}worker_rank{{run="out",run_id="o-1",worker="{value}"}} {text} 1700000000000'
    pattern = VARIABLES["worker"].regex.strip("/").replace("(?<", "(?P<")
    found = re.search(pattern, answer)
    assert (found["text"], found["value"]) == (text, value)
