"""Which worker scales its losses; what several do together is in process/test_mixed_precision."""

import pytest
import torch
from accelerate.utils import GradScalerKwargs

from hetero_hvd.integrations.huggingface import Trainer
from tests.integrations.huggingface.test_trainer import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore")

CASES = {
    "float16 in a job": (True, {"fp16": True}, {}, 65536.0),
    "float16 in a job, with its own scale": (True, {"fp16": True}, {"init_scale": 4.0}, 4.0),
    "a disabled scaler": (True, {"fp16": True}, {"enabled": False}, None),
    "bfloat16": (True, {"bf16": True}, {}, None),
    "single precision": (True, {}, {}, None),
    "float16 alone on a CPU": (False, {"fp16": True}, {}, None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_worker_on_a_cpu_scales_as_others_do(tmp_path, monkeypatch, case):
    """In a job with float16; a process alone is as plain transformers."""
    is_job, given, handler, scale = case
    if is_job:
        monkeypatch.setenv("HOROVOD_RANK", "0")
    build = Trainer._build_accelerator_args

    def with_handler(trainer, **named):
        found = build(trainer, **named)
        found["kwargs_handlers"] += [GradScalerKwargs(**handler)] if handler else []
        return found

    monkeypatch.setattr(Trainer, "_build_accelerator_args", with_handler)
    scaler = make_trainer(tmp_path, **given)._scaler
    assert (None if scaler is None else scaler.get_scale()) == scale
    assert scaler is None or scaler.state_dict()["scale"] == scale


def test_a_checkpoint_of_a_job_is_read_by_a_process_that_does_not_scale(tmp_path):
    """Which plain transformers ends with a traceback."""
    given = {"fp16": True, "save_strategy": "steps", "save_steps": 3}
    make_trainer(tmp_path, **given).train()
    checkpoint = tmp_path / "checkpoint-3"
    torch.save(torch.amp.GradScaler("cpu").state_dict(), checkpoint / "scaler.pt")
    trainer = make_trainer(tmp_path, **given)
    assert trainer.train(resume_from_checkpoint=str(checkpoint)).global_step == 6
