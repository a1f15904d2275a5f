"""The exporters that the bench lets Prometheus scrape are there."""

import json
import urllib.request

from benchmarks.fleets.scrape import _driver, _targets


def fetch(address):
    """A page."""
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own server
        return answer.read()


def test_every_listed_node_answers_with_its_own_name():
    """The driver lists itself and all nodes, as http_sd has it; each has a page of its own."""
    with _targets(_driver(3), 3) as port:
        own, *nodes = json.loads(fetch(f"http://127.0.0.1:{port}/sd"))
        assert own["labels"] == {"run": "scrape", "__scheme__": "http"}
        assert b'worker="node2:7"' in fetch(f"http://127.0.0.1:{port}/metrics")
        assert [entry["labels"]["node"] for entry in nodes] == ["node0", "node1", "node2"]
        for entry in nodes:
            page = fetch(f"{entry['labels']['__scheme__']}://{entry['targets'][0]}/metrics")
            assert f'node="{entry["labels"]["node"]}"'.encode() in page
