"""What a worker looks at before the others count on it."""

import pytest
import torch

from hetero_hvd.errors import UserError, WorkerFault
from hetero_hvd.worker import admission

CPU = torch.device("cpu")


def test_a_device_that_computes_wrongly_is_one_worker_s_fault(monkeypatch):
    """Not wrong input, with which the job ends: the others go on without this worker."""
    admission.prove_health(CPU)
    ones = torch.ones
    monkeypatch.setattr(admission.torch, "ones", lambda *size, **rest: 1.01 * ones(*size, **rest))
    with pytest.raises(WorkerFault, match="cpu computes wrongly") as caught:
        admission.prove_health(CPU)
    assert not isinstance(caught.value, UserError)
