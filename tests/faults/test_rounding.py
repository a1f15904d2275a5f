"""Workers whose processors round updates differently: what is lost and made equal on the way."""

import json
import re
from pathlib import Path

import pytest

from tests.kit.fault_job import FaultJob

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

STEPS, KILLED_AT = 24, 9
SCRIPT = """
import json, os, signal, sys, types
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
import hetero_hvd
from hetero_hvd.worker.recovery import reports

folder, error = Path(sys.argv[1]), float(sys.argv[2])
worker = os.environ["HETERO_HVD_WORKER"]
if worker == "card:0":
    reports.platform = types.SimpleNamespace(machine=lambda: "card")

class Rounded(torch.optim.AdamW):
    def step(self, closure=None):
        super().step(closure)
        if worker == "card:0":
            for parameter in self.param_groups[0]["params"]:
                parameter.data.mul_(1 + error)
                self.state[parameter]["exp_avg"].mul_(1 - error)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
x = torch.randn(64 * 8, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 64, shuffle=True)
trainer = hetero_hvd.Trainer(model, Rounded(model.parameters(), lr=1e-2), loader)

def loss(x, y):
    if worker == "cpu2:0" and trainer.applied_steps == KILLED_AT:
        (folder / "fired").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.nn.functional.mse_loss(model(x), y)

losses = []
for _ in trainer.epochs(3):
    for batch in trainer.batches():
        losses.append(float(trainer.step(loss, *batch)))
vector = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
left = {"steps": trainer.applied_steps, "parameters": vector, "losses": losses}
(folder / f"left-{worker}.json").write_text(json.dumps(left))
"""


@pytest.fixture
def trained(tmp_path):
    """Train on a card and two CPUs, one of which is killed; gives the job and what it left."""

    def train(error):
        (tmp_path / "fired").unlink(missing_ok=True)
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.replace("KILLED_AT", str(KILLED_AT)))
        command = [str(script), str(tmp_path), str(error)]
        settings = {"max_restarts": 0, "set_aside": "never"}
        job = FaultJob(tmp_path, ("card", "cpu1", "cpu2"), command=command, settings=settings)
        code = job.wait()
        assert (tmp_path / "fired").exists(), job.console
        left = [json.loads(Path(file).read_text()) for file in sorted(tmp_path.glob("left-*"))]
        return code, job, left

    return train


def test_a_loss_takes_nothing_back_and_all_end_alike(trained):
    """A card and one CPU are left, whose states differ in their last digits: nobody is wrong."""
    code, job, left = trained(1e-7)
    assert code == 0, job.console
    assert [each["steps"] for each in left] == [STEPS] * 2
    assert left[0]["parameters"] == left[1]["parameters"]
    assert left[0]["losses"][-1] < 0.5 * left[0]["losses"][0]
    assert job.console.count("(interrupted, nothing copied)") == 2
    assert not re.search("differ|healed|go back", job.console)


def test_what_is_more_than_rounding_ends_the_job_in_words(trained):
    """Two states, and nobody can tell which is right: it is said, with what can be gone on from."""
    code, job, _ = trained(1e-2)
    assert code not in (0, 1), job.console
    assert "the replicas of cpu1:0, card:0 differ in model." in job.console.replace(
        "card:0, cpu1:0", "cpu1:0, card:0"
    )
