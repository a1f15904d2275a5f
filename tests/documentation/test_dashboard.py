"""docs/examples/dashboard.py: a page about the records of runs, in Streamlit's own test of apps.

Streamlit (300 MB) is no requirement: where it is not installed, the matrix fetches it, once.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.documentation import reader_folder
from tests.kit.checkout import CHECKOUT, variables
from tests.kit.engines.fetched_packages import fetched

APP = CHECKOUT / "docs" / "examples" / "dashboard.py"
VERSION = "1.67.0"
SECONDS = 60

needs_streamlit = pytest.mark.skipif(
    importlib.util.find_spec("streamlit") is None, reason="needs streamlit; --all fetches it"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two recorded runs."""
    made = tmp_path_factory.mktemp("runs")
    reader_folder.make(made)
    return made / "runs"


@pytest.fixture
def app(folder, monkeypatch):
    """The page, as it is at first."""
    from streamlit.testing.v1 import AppTest  # noqa: PLC0415 - where it is

    monkeypatch.setattr(sys, "argv", [str(APP), str(folder)])
    shown = AppTest.from_file(str(APP), default_timeout=SECONDS).run()
    assert not shown.exception
    return shown


def subheaders(app):
    """The titles of its plots."""
    return [each.value for each in app.subheader]


@needs_streamlit
def test_at_first_all_runs_are_there(app):
    """Listed, and the loss of two of them is drawn."""
    table = app.dataframe[0].value
    assert set(table["folder"]) == {"first", "second"}
    assert set(table["accuracy"] > 0.5) == {True}
    assert subheaders(app) == ["loss", "Shares of first"]


@needs_streamlit
@pytest.mark.parametrize(
    ("where", "num_runs"), [("accuracy > 0.5", 2), ("name = 'second'", 1), ("accuracy > 0.99", 0)]
)
def test_runs_are_chosen_by_a_condition(app, where, num_runs):
    """As `hetero-hvd runs --where` does."""
    app.sidebar.text_input[0].set_value(where).run()
    assert not app.exception
    assert sum(len(each.value) for each in app.dataframe) == num_runs
    assert bool(app.info) == (num_runs == 0)


@needs_streamlit
def test_a_wrong_condition_is_told(app):
    """In the words of the command."""
    app.sidebar.text_input[0].set_value("acuracy > 0.5").run()
    assert not app.exception
    assert "acuracy" in app.error[0].value


@needs_streamlit
def test_figures_and_workers_are_chosen(app):
    """Each figure that a run has, of some of its workers, over steps or seconds, smoothed."""
    figure = app.sidebar.selectbox[0]
    assert {"loss", "learning_rate", "step_seconds", "local_batch_size"} <= {*figure.options}
    figure.set_value("step_seconds").run()
    owners = app.sidebar.multiselect[1]
    assert [*owners.options] == ["alpha:0", "beta:0", "gamma:0"]
    owners.set_value(["gamma:0"]).run()
    app.sidebar.radio[0].set_value("seconds")
    app.sidebar.slider[0].set_value(5).run()
    assert not app.exception
    assert subheaders(app)[0] == "step_seconds"
    app.sidebar.multiselect[0].set_value([]).run()
    assert not app.exception
    assert subheaders(app) == []


@pytest.mark.matrix
@pytest.mark.skipif(importlib.util.find_spec("streamlit") is not None, reason="it was tested")
@pytest.mark.timeout(600)
def test_all_that_with_a_streamlit_that_is_fetched():
    """In a process that finds it beside this environment's packages."""
    packages = fetched("streamlit", VERSION, is_constrained=True)
    path = variables(PYTHONPATH=f"{variables()['PYTHONPATH']}:{packages}")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        words, cwd=CHECKOUT, env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout, done.stdout
