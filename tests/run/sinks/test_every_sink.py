"""Every kind of sink: what was recorded comes back from it, and what can go wrong is one line."""

from __future__ import annotations

import ast
import gc
import math
import shutil
import sys
import warnings
from base64 import b64decode
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from hetero_hvd.cli import main
from hetero_hvd.run.records.writer import FILE, Recorder
from hetero_hvd.run.sinks import sink as sinks
from hetero_hvd.run.sinks.destinations import (
    influx_lines,
    postgresql_tables,
    redis_hash,
)
from tests.run.records.test_records import write

from . import readers, servers
from .recorded import ACCURACY, EVENTS, LOGGED, LOSS, RATE, STARTED

FILES = {
    "csv": (readers.from_csv, "run.csv"),
    "json": (readers.from_json, "run.json"),
    "parquet": (readers.from_parquet, "run.parquet"),
    "openmetrics": (readers.from_openmetrics, "run.txt"),
    "tensorboard": (readers.from_tensorboard, "board"),
    "influx": (readers.from_influx, "run.influx"),
    "wandb": (readers.from_wandb, ""),
    "mlflow": (readers.from_mlflow, ""),
}
"""Kind to who reads it, and the name of its file in the working directory."""

EXTRAS = {
    "parquet": "pyarrow",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "postgresql": "psycopg",
    "redis": "redis",
}
NO_NAN = {"influx", "json"}
"""Kinds that cannot hold what is no number."""

RENAMED = {"mlflow"}
"""Kinds that do not take every name."""


@pytest.fixture(scope="module")
def postgresql_port():
    """Of a PostgreSQL server."""
    if servers.postgresql_programs() is None:
        pytest.skip("apt install postgresql")
    with servers.postgresql() as port:
        yield port


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory):
    """Of a Redis server."""
    if shutil.which("redis-server") is None:
        pytest.skip("apt install redis-server")
    with servers.redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(autouse=True)
def _psycopg_leaves_nothing():
    """A connection that psycopg could not make is left to the collector, which warns of it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with the credentials in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPASSWORD", servers.PASSWORD)
    monkeypatch.setenv("REDISCLI_AUTH", servers.PASSWORD)
    monkeypatch.setenv("INFLUX_TOKEN", servers.PASSWORD)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return tmp_path


@pytest.fixture
def run(tmp_path):
    """A recorded run."""
    place = tmp_path / "run"
    place.mkdir()
    write(place, *EVENTS)
    return place


def check(found, kind):
    """That all numbers are those of the record."""
    assert found["evaluation/accuracy"] == ACCURACY
    assert found["run/loss"] == LOSS
    assert found["run/learning_rate"] == RATE
    assert found["run/progress_ratio"] == LOGGED.step / (LOGGED.step + LOGGED.remaining_steps)
    assert ("logged/nothing" in found) == (kind not in NO_NAN)
    if kind not in NO_NAN:
        assert math.isnan(found["logged/nothing"])
        assert found["logged/much"] > 1e300  # mlflow has no infinity, but the largest number
    if kind not in RENAMED:
        assert found['evaluation/F1 "größe", a=b'] == 0.5


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.filterwarnings("default")  # of wandb's and mlflow's own code
def test_the_accuracy_comes_back_from_files(run, kind):
    """Equal, by the reader of each destination; also the loss and the learning rate."""
    if kind in EXTRAS:
        pytest.importorskip(EXTRAS[kind])
    read, name = FILES[kind]
    assert main(["export", str(run), "--to", f"{kind}:{name}"]) == 0
    check(read(name), kind)


def test_the_accuracy_comes_back_from_postgresql(run, postgresql_port):
    """Equal; a second export takes the place of the first one."""
    url = f"postgresql://trainer@127.0.0.1:{postgresql_port}/postgres"
    for _ in range(2):
        assert main(["export", str(run), "--to", url]) == 0
        check(readers.from_postgresql(url), "postgresql")
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(url) as connection:
        asked = "SELECT run_id, name, tags, state FROM hetero_hvd_runs"
        assert connection.execute(asked).fetchall() == [
            (STARTED.run_id, STARTED.name, STARTED.tags, "done")
        ]


def test_the_accuracy_comes_back_from_redis(run, redis_port):
    """Equal: the latest state."""
    url = f"redis://127.0.0.1:{redis_port}/0"
    assert main(["export", str(run), "--to", url]) == 0
    check(readers.from_redis(url), "redis")


def test_the_accuracy_comes_back_from_an_influx_server(run):
    """Equal, with the token that the environment has."""
    with servers.receiver() as server:
        url = f"influx:{server.url}/api/v2/write?org=o&bucket=b"
        assert main(["export", str(run), "--to", url]) == 0
    ((path, token, body),) = server.requests
    assert (path, token) == ("/api/v2/write?org=o&bucket=b", f"Token {servers.PASSWORD}")
    check(readers.from_influx_text(body.decode()), "influx")


def test_an_influx_server_may_want_a_user(run):
    """Whose password in the URL goes into the header, not into the request."""
    with servers.receiver() as server:
        url = server.url.replace("://", f"://me:{servers.PASSWORD_IN_URL}@")
        assert main(["export", str(run), "--to", f"influx:{url}/write?db=d"]) == 0
    ((path, told, _),) = server.requests
    assert path == "/write?db=d"
    assert b64decode(told.removeprefix("Basic ")).decode() == f"me:{servers.PASSWORD}"


def test_standard_output_is_the_default(run, capsys):
    """CSV, to be piped into other programs."""
    assert main(["export", str(run)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("at_unix_seconds,step,name,value\n")
    assert f"evaluation/accuracy,{ACCURACY!r}\n" in printed


WRONG = {
    "no kind": ("nonsense", "nonsense: must begin with csv:, json:, parquet:"),
    "no file": ("csv:", "must name a file"),
    "no folder": ("tensorboard:", "must name a folder"),
    "no such folder": ("csv:no/such/run.csv", "No such file or directory"),
    "a folder": ("influx:/", "Is a directory"),
    "parquet in none": ("parquet:no/such/file", "No such file"),
    "postgresql refuses": ("postgresql://u:{password}@127.0.0.1:1/d", "refused"),
    "redis refuses": ("redis://:{password}@127.0.0.1:1/0", "refused"),
    "influx refuses": ("influx:http://u:{password}@127.0.0.1:1/w?p={password}", "refused"),
    "no address": ("postgresql://u:{password}@[::1/d", "export to postgresql://u:(hidden)@[::1/d:"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_sink_refuses_is_one_line_without_secrets(run, capsys, case):
    """That names the destination, and exit code 2."""
    url, words = WRONG[case]
    assert main(["export", str(run), "--to", url.format(password=servers.PASSWORD_IN_URL)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
    check_secrets(said)


def check_secrets(text):
    """That the password is not in it, in any form."""
    for secret in (servers.PASSWORD, servers.PASSWORD_IN_URL, "s3cret", "battery"):
        assert secret not in text


def test_a_wrong_password_is_told_and_not_shown(
    run, capsys, monkeypatch, postgresql_port, redis_port
):
    """Of PostgreSQL and Redis, by their own words."""
    for name in ("PGPASSWORD", "REDISCLI_AUTH"):
        monkeypatch.delenv(name)
    wrong = f"x{servers.PASSWORD_IN_URL}"
    for url, words in (
        (f"postgresql://trainer:{wrong}@127.0.0.1:{postgresql_port}/postgres", "password authen"),
        (f"redis://:{wrong}@127.0.0.1:{redis_port}/0", "password"),
    ):
        assert main(["export", str(run), "--to", url]) == 2
        said = capsys.readouterr().err
        assert words in said
        check_secrets(said)


def test_a_table_of_another_shape_is_told(run, capsys, postgresql_port):
    """And left as it is."""
    psycopg = pytest.importorskip("psycopg")
    url = f"postgresql://trainer@127.0.0.1:{postgresql_port}/template1"
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE hetero_hvd_samples (own text)")
    assert main(["export", str(run), "--to", url]) == 2
    assert 'column "run_id" of relation "hetero_hvd_samples"' in capsys.readouterr().err


SILENT = {
    "postgresql": "postgresql://u@127.0.0.1:{port}/d",
    "redis": "redis://127.0.0.1:{port}/0",
    "influx": "influx:http://127.0.0.1:{port}/w",
}


@pytest.mark.parametrize("kind", SILENT)
def test_a_server_that_never_answers_is_given_up(run, capsys, monkeypatch, kind):
    """After its time."""
    if kind in EXTRAS:
        pytest.importorskip(EXTRAS[kind])
    for module in (influx_lines, postgresql_tables, redis_hash):
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", 2.0)
    with servers.silent_port() as port:
        assert main(["export", str(run), "--to", SILENT[kind].format(port=port)]) == 2
    said = capsys.readouterr().err
    assert "time" in said.lower()
    assert len(said.splitlines()) == 1


def test_an_influx_server_that_refuses_is_told(run, capsys):
    """With what it said."""
    with servers.receiver(401) as server:
        assert main(["export", str(run), "--to", f"influx:{server.url}/w"]) == 2
    assert "401" in capsys.readouterr().err


def empty(place):
    """A run that was killed at its start."""
    Recorder(place).close()
    write(place, STARTED)


def running(place):
    """One that goes on."""
    write(place, *EVENTS[:-1])


def nothing(place):
    """No transaction was made."""
    with closing((place / FILE).open("wb")):
        pass


RECORDS = {"empty": empty, "running": running, "nothing": nothing}


@pytest.mark.parametrize("kind", ["csv", "parquet", "openmetrics", "tensorboard", "influx"])
@pytest.mark.parametrize("record", RECORDS)
def test_a_record_that_is_not_whole_is_exported_as_far_as_it_goes(tmp_path, record, kind):
    """An empty destination, or all that there is."""
    place = tmp_path / "run"
    place.mkdir()
    RECORDS[record](place)
    read, name = FILES[kind]
    assert main(["export", str(place), "--to", f"{kind}:{name}"]) == 0
    if record == "running":
        check(read(name), kind)
    elif kind != "openmetrics":
        assert read(name) == {}


def test_a_torn_record_is_told(run, capsys):
    """In one line, before anything is written."""
    content = (run / FILE).read_bytes()
    (run / FILE).write_bytes(content[: len(content) // 2])
    for path in run.glob("*-*"):
        path.unlink()
    assert main(["export", str(run), "--to", "csv:run.csv"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not Path("run.csv").exists()


@pytest.mark.parametrize(("kind", "module"), EXTRAS.items())
def test_a_missing_extra_is_named(run, capsys, monkeypatch, kind, module):
    """One line that says what to install."""
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    url = f"{kind}:x" if kind not in SILENT else SILENT[kind].format(port=1)
    assert main(["export", str(run), "--to", url]) == 2
    assert f"pip install 'hetero_hvd[{kind}]'" in capsys.readouterr().err


class Other:
    """Another package's sink."""

    resumes = False
    heard: ClassVar[list] = []

    def __init__(self, url):
        self.heard.append(url)

    def begin(self, run):
        """Hear of it."""
        self.heard.append(run.run_id)

    def write(self, samples):
        """Count them."""
        self.heard.append(len(samples) > 0)

    def end(self, state):
        """Hear of it."""
        self.heard.append(state)


def test_another_package_may_bring_a_kind(run, monkeypatch):
    """By an entry point, as ours are."""
    entry = sinks.importlib.metadata.EntryPoint("other", f"{__name__}:Other", sinks.GROUP)
    monkeypatch.setattr(sinks.importlib.metadata, "entry_points", lambda **_: [entry])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Other.__module__])
    assert main(["export", str(run), "--to", "other:place"]) == 0
    assert Other.heard == ["other:place", STARTED.run_id, True, "done"]


def test_our_own_kinds_are_registered_as_any_other():
    """In setup.py, each with the class that the package knows by itself."""
    checkout = Path(sinks.__file__).parents[3]
    tree = ast.parse((checkout / "setup.py").read_text())
    (call,) = [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "setup"
    ]
    points = next(k.value for k in call.keywords if k.arg == "entry_points")
    found = eval(ast.unparse(points))[sinks.GROUP]  # noqa: S307 - our own file
    assert found == [f"{scheme} = {place}" for scheme, place in sinks.OWN.items()]


def test_a_sink_is_short():
    """40 lines, but for those of experiment trackers, and the client of Kubernetes' API server."""
    folder = Path(influx_lines.__file__).parent
    for path in set(folder.glob("*.py")) - {folder / "kubernetes_object.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno + 1 <= 40, path
