"""Plots of recorded runs, to be filtered, by Streamlit.

pip install streamlit, then: streamlit run docs/examples/dashboard.py -- runs

It reads what `hetero-hvd runs --json` and `hetero-hvd export RUN` print, so it needs no more than a
folder of runs, also of running ones; R reads it again.
"""

import io
import json
import subprocess
import sys

import pandas as pd
import streamlit as st

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "runs"


def ask(*words):
    """What a command of hetero-hvd prints; what it refuses is shown, and ends the page."""
    command = [sys.executable, "-m", "hetero_hvd", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        st.error(done.stderr)
        st.stop()
    return done.stdout


@st.cache_data(ttl=10)
def runs_of(folder, where):
    """A row for each run that a condition holds for."""
    condition = ["--where", where] if where else []
    runs = json.loads(ask("runs", folder, "--json", *condition))
    rows = [run | run["tags"] | run["metrics"] | {"verdict": run["verdict"][:1]} for run in runs]
    return pd.DataFrame(rows).drop(columns=["tags", "metrics"], errors="ignore")


@st.cache_data(ttl=10)
def figures_of(folder, run):
    """All figures of a run: when, step, whose, which and how much."""
    rows = pd.read_csv(io.StringIO(ask("export", f"{folder}/{run}")))
    rows[["owner", "figure"]] = rows["name"].str.split("/", n=1, expand=True)
    rows["seconds"] = rows["at_unix_seconds"] - rows["at_unix_seconds"].min()
    rows["run"] = run
    return rows


st.set_page_config(page_title="Runs", layout="wide")
st.title("Runs")
where = st.sidebar.text_input("Where", placeholder="accuracy > 0.9 and tag.lr < 0.2")
runs = runs_of(FOLDER, where)
if runs.empty:
    st.info("No run is like that.")
    st.stop()
st.dataframe(runs, hide_index=True)

names = list(runs["folder"])
chosen = st.sidebar.multiselect("Runs", names, default=names[:2])
if not chosen:
    st.stop()
figures = pd.concat([figures_of(FOLDER, name) for name in chosen])
known = sorted(figures["figure"].unique())
figure = st.sidebar.selectbox("Figure", known, index=known.index("loss") if "loss" in known else 0)
rows = figures[figures["figure"] == figure]
owners = st.sidebar.multiselect("Of", sorted(rows["owner"].unique()), key=f"of {figure}")
across = st.sidebar.radio("Over", ["step", "seconds"], horizontal=True)
window = st.sidebar.slider("Mean of so many points", 1, 50, 1)
if owners:
    rows = rows[rows["owner"].isin(owners)]
rows = rows.assign(series=rows["run"] + " " + rows["owner"]).sort_values(["series", across])
means = rows.groupby("series")["value"].rolling(window, min_periods=1).mean()
rows = rows.assign(value=means.to_numpy())
st.subheader(figure)
st.line_chart(rows, x=across, y="value", color="series", x_label=across, y_label=figure)

shares = figures[(figures["figure"] == "local_batch_size") & (figures["run"] == chosen[0])]
if not shares.empty:
    st.subheader(f"Shares of {chosen[0]}")
    st.area_chart(shares, x=across, y="value", color="owner", x_label=across, y_label="samples")
