"""What `hetero-hvd run --ray` makes of the options, before and while it has nodes."""

import json

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.train import ray_job
from hetero_hvd.cli.train.ray_job import RayJob
from hetero_hvd.driver.termination import Termination
from tests.ray_cluster.conftest import entry

REFUSED = {
    "resources without a cluster": (
        ["--ray-resources", "GPU=1"],
        "--ray-resources: has no effect without --ray; add that, or leave it out",
    ),
    "two lenders": (["--ray", "--slurm"], "--ray and --slurm: either lends the nodes"),
    "an empty address": (["--ray", ""], "--ray: found '', must be an address as HEAD:6379"),
    "no Ray": (["--ray"], "--ray needs Ray, not installed in "),
    "an option for Slurm": (["--ray", "--requeue"], "--requeue: has no effect without --slurm"),
    "bad resources": (
        ["--ray", "--ray-resources", "GPU"],
        "--ray-resources: found 'GPU', must be NAME=AMOUNT",
    ),
    "a bad setting": (["--ray", "--min-np", "none"], "flag: --min-np: found 'none', must be"),
    "a TLS file": (["--ray", "--tls-file", "driver.pem"], "tls_file: found one, and the agents"),
    "no such cluster": (["--ray", "nonsense"], "--ray nonsense: Invalid address format: nonsense"),
}


@pytest.mark.usefixtures("told_ray")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name, capsys, monkeypatch, tmp_path):
    """In one line, with exit code 2."""
    words, line = REFUSED[name]
    if name != "no Ray":
        monkeypatch.setattr(ray_job, "installed", lambda package: f"{package} 2.60.0")
    monkeypatch.setattr("hetero_hvd.cli.train.run.require_training", lambda _: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["run", *words, "--", "train.py"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hetero-hvd: {line}")
    assert said.count("\n") == 1


def test_a_mistyped_script_is_refused_before_anything_is_placed(
    told_ray, capsys, monkeypatch, tmp_path
):
    """Script and data are on all nodes under the same path, and so on the driver's."""
    told_ray.list(entry("1"))
    monkeypatch.setattr(ray_job, "installed", lambda package: f"{package} 2.60.0")
    monkeypatch.setattr("hetero_hvd.cli.train.run.require_training", lambda _: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["run", "--ray", "--", "tran.py"]) == 2
    line = f"hetero-hvd: tran.py: no such file in {tmp_path}, where every-node runs it; "
    assert capsys.readouterr().err == f"{line}did you mean train.py?\n"
    assert not (told_ray.folder / "options.jsonl").exists()


def test_a_file_says_more_about_nodes_and_lists_none(told_ray, monkeypatch, tmp_path):
    """Under their names; one that Ray does not have is none."""
    monkeypatch.setattr(ray_job, "installed", lambda package: f"{package} 2.60.0")
    settings = tmp_path / "settings.yaml"
    nodes = [{"name": "alpha", "relative_speed": 0.5}, {"name": "nowhere"}]
    settings.write_text(json.dumps({"job": {"min_np": 3}, "nodes": nodes}))
    told_ray.list(entry("1", "alpha"), entry("2", "beta"))

    class Given:
        ray = "auto"
        ray_resources = None
        nodes_files = (settings,)

        def __getattr__(self, name):
            return None

    with Termination().keeping(RayJob(Given())) as job:
        assert job.stand_ins == ()  # their folders are unknown
        file = job.nodes_file
        found = file.current
        assert (found.job.min_np, found.may_grow) == (3, True)
        assert [(n.name, n.launcher, n.relative_speed) for n in found.nodes] == [
            ("alpha", "agent", 0.5),
            ("beta", "agent", None),
        ]
        assert file.refresh() == "unchanged"
