"""What the supervisor puts in front of a script's imports."""

import subprocess
import sys

import pytest

from hetero_hvd.supervisor import worker_environment


def run_python(code, *, python_path):
    """Output of an interpreter with the environment of a worker."""
    order = {"environment": {"PYTHONPATH": str(python_path)}, "gpu": None}
    environment = worker_environment(order)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_sitecustomize_behind_it_is_loaded_too(tmp_path):
    """The user's own module of that name, or none, works as if ours were not there."""
    (tmp_path / "sitecustomize.py").write_text("print('the user\\'s')")
    name = "import sitecustomize, sys; print(sitecustomize.__file__)"
    assert run_python(name, python_path=tmp_path) == (
        0,
        f"the user's\n{tmp_path / 'sitecustomize.py'}\n",
        "",
    )
    (tmp_path / "empty").mkdir()
    code, output, errors = run_python("print('runs')", python_path=tmp_path / "empty")
    assert (code, output, errors) == (0, "runs\n", "")


def test_an_error_in_the_sitecustomize_behind_it_is_shown(tmp_path):
    """A module that it misses is the user's to see."""
    (tmp_path / "sitecustomize.py").write_text("import no_such_module")
    _, _, errors = run_python("print('runs')", python_path=tmp_path)
    assert "No module named 'no_such_module'" in errors


ERRORS = {
    "no arguments": "KeyError()",
    "several": "KeyError('RANK', 1)",
    "what cannot be hashed": "KeyError([])",
    "another name": "KeyError('rank')",
    "a key of the script's own": "KeyError('RANK')",
    "a column of a table": "SystemExit({'rank': 1}['RANK'])",
    "another kind": "LookupError('RANK')",
    "one of its own": "type('Mine', (KeyError,), {})('RANK')",
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_the_script_is_shown_as_it_is(name, tmp_path):
    """Unless it looks for a variable of torchrun's."""
    code, _, errors = run_python(f"raise {ERRORS[name]}", python_path=tmp_path)
    assert code == 1
    assert "sitecustomize" not in errors
    assert errors.count("Traceback") == 1


OWN_GROUPS = {
    "a file": "init_method='file://{folder}/store', rank=0, world_size=1",
    "a store": "store=dist.HashStore(), rank=0, world_size=1",
    "an address": "rank=0, world_size=1",
}


@pytest.mark.parametrize("name", OWN_GROUPS)
def test_groups_that_the_script_describes_are_its_own(tmp_path, name):
    """A torch.distributed group with its own store joins nobody else's processes."""
    code = f"""
import os, torch.distributed as dist
if {name == "an address"}:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo", {OWN_GROUPS[name].format(folder=tmp_path)})
print(dist.get_world_size())
"""
    assert run_python(code, python_path=tmp_path) == (0, "1\n", "")


REFUSED = {
    "no address": "dist.init_process_group('gloo', rank=0, world_size=1)",
    "of torchrun": "dist.init_process_group('gloo', init_method='env://')",
    "a variable": "import os; os.environ['RANK']",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_torchrun_is_refused_in_one_line(tmp_path, name):
    """No process alone with all of the data, no traceback of torch's."""
    code, _, errors = run_python(
        f"import torch.distributed as dist\n{REFUSED[name]}", python_path=tmp_path
    )
    assert (code, errors.count("\n")) == (64, 1)
    assert "each worker would train alone" in errors


TRANSFORMERS = """
import torch, transformers
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x):
        return {"loss": self.layer(x).mean()}
args = transformers.TrainingArguments("hf", max_steps=1, use_cpu=True, report_to="none")
rows = [{"x": torch.ones(1)}] * 8
trainer = transformers.Trainer(Net(), args, train_dataset=rows)
print("made")
trainer.train()
"""
LIGHTNING = """
import torch, lightning.pytorch as pl
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, x, _):
        return self.layer(x).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
trainer = pl.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False)
print("made")
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(8, 1)))
"""
ALONE = {
    "transformers": (TRANSFORMERS, "trains with transformers.Trainer: started by hetero-hvd"),
    "lightning": (LIGHTNING, "fits with a Lightning Trainer that has no HeteroStrategy: started"),
}


@pytest.mark.parametrize(
    "name", ["transformers", pytest.param("lightning", marks=pytest.mark.matrix)]
)
def test_a_trainer_that_knows_of_no_worker_is_refused_in_one_line(tmp_path, name):
    """Before it trains; a script that has a trainer of ours, too, may do so."""
    pytest.importorskip(name)
    script, words = ALONE[name]
    code, output, errors = run_python(
        f"import os; os.chdir({str(tmp_path)!r})\n{script}", python_path=tmp_path
    )
    assert (code, output.splitlines()[-1]) == (64, "made"), errors
    assert words in errors.splitlines()[-1]
    assert "Traceback" not in errors
    both = (
        f"import os; os.chdir({str(tmp_path)!r})\nimport hetero_hvd; hetero_hvd.Trainer\n{script}"
    )
    code, _, errors = run_python(both, python_path=tmp_path)
    assert code == 0, errors


OURS_TOO = "import hetero_hvd; hetero_hvd.Trainer\n"
ARGUMENTS = "import transformers; transformers.TrainingArguments('hf', deepspeed='zero3.json')"
DEEPSPEED = {
    "initialize": ("import deepspeed; deepspeed.initialize(model=None)", "deepspeed.initialize()"),
    "by name": ("from deepspeed import initialize; initialize()", "deepspeed.initialize()"),
    "distributed": ("import deepspeed; deepspeed.init_distributed()", "init_distributed()"),
    "ours too": (f"{OURS_TOO}import deepspeed; deepspeed.initialize()", "deepspeed.initialize()"),
    "arguments": (ARGUMENTS, "gives TrainingArguments deepspeed=..."),
    "imported only": ("import deepspeed; print('runs')", ""),
}


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed_is_refused_by_name(tmp_path, name):
    """Where a script starts it: before it looks for other processes, or for what is not there."""
    (tmp_path / "deepspeed.py").write_text(
        "def initialize(*args, **named):\n    print('started')\ninit_distributed = initialize\n"
    )
    script, words = DEEPSPEED[name]
    code, output, errors = run_python(script, python_path=tmp_path)
    assert "started" not in output
    if not words:
        assert code == 0, errors
        return
    assert code == 64, errors
    assert words in errors.splitlines()[-1]
    assert "take DeepSpeed out" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_another_variable_is_the_scripts_own_affair(tmp_path):
    """Its traceback is Python's."""
    code, _, errors = run_python("import os; os.environ['DATA']", python_path=tmp_path)
    assert (code, "KeyError: 'DATA'" in errors) == (1, True)
