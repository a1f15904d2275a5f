"""What the guides say is done, line by line, to a script that knows nothing of us: three hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]
GUIDES = Path(__file__).parents[2] / "docs" / "guide"

HUGGING_FACE = """
import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed
from transformers import Trainer, TrainingArguments

set_seed(0)
off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, **off)
config.bos_token_id = config.eos_token_id = 0
samples = [torch.arange(first, first + 12) * 7 % 50 for first in range(60)]
data = [{"input_ids": sample, "labels": sample} for sample in samples]
arguments = TrainingArguments(
    "checkpoints",
    per_device_train_batch_size=8,
    max_steps=12,
    learning_rate=1e-2,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config), args=arguments, train_dataset=data[:48], eval_dataset=data[48:]
)
trainer.train()
found = trainer.evaluate()["eval_loss"]
if trainer.is_world_process_zero():
    Path("result.json").write_text(json.dumps(found))
"""

LIGHTNING = """
import json
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, _):
        return (self.layer(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch, _):
        self.log("error", (self.layer(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(0)
x = torch.linspace(-1, 1, 180).view(60, 3)
data = TensorDataset(x, x.sum(1, keepdim=True))
module = Model()
trainer = Trainer(max_epochs=10)
trainer.fit(module, DataLoader(data, 12))
found = trainer.validate(module, DataLoader(data, 12))[0]["error"]
if trainer.is_global_zero:
    Path("result.json").write_text(json.dumps(found))
"""

SCRIPTS = {"huggingface": ("transformers", HUGGING_FACE), "lightning": ("lightning", LIGHTNING)}
SPEEDS = {"alpha": 1.0, "beta": 0.5, "gamma": 0.5}


def changed(script, guide):
    """The script after the first diff of the guide; each line that goes is in it once."""
    (diff,) = re.findall(r"```diff\n(.*?)```", guide, re.DOTALL)[:1]
    gone = [line[1:] for line in diff.splitlines() if line.startswith("-")]
    come = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    assert len(come) <= 3
    lines = script.splitlines()
    for line in gone:
        assert lines.count(line) == 1, f"the guide takes out {line!r}"
    place = lines.index(gone[0])
    imports = [line for line in come if line.startswith(("from ", "import "))]
    others = [line for line in come if line not in imports]
    lines[place : place + 1] = others
    at = next(number for number, line in enumerate(lines) if line.startswith("import torch"))
    return "\n".join([*lines[: at + 1], *imports, *lines[at + 1 :]])


def commands(guide):
    """What the guide types: the installation, training alone, and on all nodes."""
    (block,) = re.findall(r"^```\n(pip install .*?)```", guide, re.DOTALL | re.MULTILINE)[:1]
    install, together = block.strip().splitlines()
    together, remark = together.split("#")
    alone = re.match(r" *(python .*) still trains alone", remark)[1]
    return install, alone, together.strip()


def typed(folder, command):
    """What it prints, in a folder of the user's; nothing is fetched from the network."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(folder, command):
    """What the script has found; the folder keeps nothing from before."""
    (folder / "result.json").unlink(missing_ok=True)
    said = typed(folder, command)
    return json.loads((folder / "result.json").read_text()), said


@pytest.mark.matrix
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_moves_to_three_hosts(virtual_cluster, tmp_path, name):
    """As it was, changed and alone, changed and on three hosts over ssh: the same is found."""
    package, text = SCRIPTS[name]
    pytest.importorskip(package)
    guide = (GUIDES / f"{name}.md").read_text()
    install, train_alone, train_together = commands(guide)
    script = tmp_path / "train.py"
    script.write_text(text)
    before, _ = run(tmp_path, train_alone)
    script.write_text(changed(text, guide))
    assert "already satisfied: hetero_hvd" in typed(tmp_path, install)
    alone, _ = run(tmp_path, train_alone)
    cluster = virtual_cluster({"alpha": 100, "beta": 100, "gamma": 100})
    nodes = [
        cluster[host].node(slots=1, devices=[], directory=str(tmp_path), relative_speed=speed)
        for host, speed in SPEEDS.items()
    ]
    job = {"rule": "static", "checkpoint_seconds": 0}
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"job": job, "nodes": nodes}))
    together, said = run(tmp_path, train_together)
    assert (alone, together) == pytest.approx((before, before), rel=1e-5)
    assert re.search(r"3 workers train together", said)
    assert re.search(r"shares alpha:0 (\d+) \| beta:0 (?!\1)\d+", said)


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_guides_say_the_same(name):
    """The page of all changes names the commands and the changes of an integration's own page."""
    guide = (GUIDES / f"{name}.md").read_text()
    others = (GUIDES / "migrate.md").read_text()
    link = others.index(f"]({name}.md)")
    section = others[others.rindex("\n## ", 0, link) : link]
    _, train_alone, train_together = commands(guide)
    changes = re.search(r"```diff\n(.*?)```", guide, re.DOTALL)[1]
    added = re.findall(
        r"^\+(from hetero_hvd.* import \w+)$|(strategy=\w+\(\))", changes, re.MULTILINE
    )
    for words in (train_alone, train_together, *filter(None, sum(added, ()))):
        assert words in section, words
