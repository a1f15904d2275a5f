"""Trainings of part `trainers`: `... FOLDER`, in which job.json says how; see `JOB`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

JOB = {
    "device": "cpu",  # kind of the card
    "trainer": "huggingface",  # or lightning
    "precision": "float32",  # bf16, fp16
    "batch": 256,
    "num_steps": 24,
    "width": 256,
}
CLASSES = 4


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Numbers, and what they are to become."""

    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": torch.tanh(self.x[index, :CLASSES]) + 1.0}


class Model(nn.Module):
    """Small, and gives its loss as models of transformers do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, CLASSES, bias=False)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of a batch, and what it was made from."""
        found = self.layers(x)
        return {"loss": mse_loss(found.float(), labels), "logits": found}


def hugging_face(job: dict[str, Any], model: Model, data: Samples, folder: Path) -> dict[str, Any]:
    """Train with `transformers`; the losses of all steps, and the device."""
    from transformers import TrainingArguments  # noqa: PLC0415 - one of the two is needed

    from hetero_hvd.integrations.huggingface import Trainer  # noqa: PLC0415

    low: dict[str, Any] = {}
    if job["precision"] != "float32":
        low = {job["precision"]: True}
    arguments = TrainingArguments(
        output_dir=str(folder / "output"),
        per_device_train_batch_size=job["batch"],
        max_steps=job["num_steps"],
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.accelerator.is_available(),
        **low,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"losses": losses, "device": str(trainer.args.device)}


def lightning(job: dict[str, Any], model: Model, data: Samples, folder: Path) -> dict[str, Any]:
    """Train with Lightning; the losses of all steps, and the device."""
    import lightning.pytorch as pl  # noqa: PLC0415 - one of the two is needed
    from torch.utils.data import DataLoader  # noqa: PLC0415

    from hetero_hvd.integrations.lightning import HeteroStrategy  # noqa: PLC0415

    class Module(pl.LightningModule):
        """The model, with an optimizer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.losses: list[float] = []
            self.trained_on = ""

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            """The loss of a pass."""
            self.trained_on = str(self.device)  # when training is over, Lightning moves it away
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def on_train_batch_end(self, outputs: Any, *_: Any) -> None:  # noqa: ANN401 - Lightning's
            """The mean of the global batch."""
            self.losses.append(float(outputs["loss"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """As that of the other trainer."""
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)

    module = Module()
    low: dict[str, Any] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
    trainer = pl.Trainer(
        max_steps=job["num_steps"],
        precision=low.get(job["precision"], "32-true"),
        strategy=HeteroStrategy(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder / "output",
    )
    trainer.fit(module, DataLoader(data, job["batch"], shuffle=True))
    return {"losses": module.losses, "device": module.trained_on}


def main() -> None:
    """Train, and leave losses, device and parameters."""
    folder = Path(sys.argv[1])
    job = JOB | json.loads((folder / "job.json").read_text())
    torch.manual_seed(0)
    model = Model(job["width"])
    data = Samples(job["batch"] * job["num_steps"])
    train = {"huggingface": hugging_face, "lightning": lightning}[job["trainer"]]
    left = train(job, model, data, folder)
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    left |= {"parameters": vector.tolist(), "num_parameters": len(vector)}
    name = os.environ.get("HETERO_HVD_WORKER", "alone")
    (folder / f"left-{name}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main()
