"""A real Prometheus on the files of `hetero-hvd deploy monitoring`."""

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from hetero_hvd.deploy.folder import FolderContents, write_folder
from hetero_hvd.monitoring.files import stack_files
from tests.leftovers import wait_until


def free_port():
    """A port that nobody has now."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


class Prometheus:
    """Scrapes and judges each second, and looks for runs as often; keeps exemplars.

    Args:
        folder: For its files.
        watched: Where the runs are.
        targets: Addresses of further exporters.
        receiver: Address of an Alertmanager, `HOST:PORT`.
        change: Changes the text of rules.yml.
    """

    def __init__(self, folder, watched, *, targets=(), receiver=None, change=str):
        files = stack_files(watched)
        config = json.loads(files["prometheus.yml"])
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        runs = config["scrape_configs"][0]
        for each in (*runs["http_sd_configs"], *runs.get("file_sd_configs", ())):
            each["refresh_interval"] = "1s"
        if targets:
            own = {"job_name": "n", "static_configs": [{"targets": list(targets)}]}
            config["scrape_configs"].append(own)
        receivers = [{"targets": [receiver]}] if receiver else []
        config["alerting"] = {"alertmanagers": [{"static_configs": receivers}]}
        files |= {"prometheus.yml": json.dumps(config), "rules.yml": change(files["rules.yml"])}
        write_folder(folder / "stack", FolderContents(files=files))
        self.port = free_port()
        words = (
            f"--config.file={folder / 'stack' / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--enable-feature=exemplar-storage",
        )
        with (folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)

    def asked(self, path, **parameters):
        """What its API answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def found(self, query, label=None):
        """What a query gives: the labels of each series, or one label of it; [] while it starts."""
        try:
            found = self.asked("query", query=query)["result"]
        except (urllib.error.URLError, ConnectionError):
            return []
        series = [each["metric"] for each in found]
        return series if label is None else sorted(one.get(label) for one in series)

    def wait_for(self, query, label, values, seconds=45):
        """Wait until the series of a query have these values of a label."""
        wait_until(
            lambda: self.found(query, label) == sorted(values), seconds, f"{query}: {values}"
        )

    def of_itself(self, name):
        """The sum of a metric that it has of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return sum(s.value for family in families for s in family.samples if s.name == name)

    def close(self):
        """End it."""
        self._process.terminate()
        self._process.wait()
