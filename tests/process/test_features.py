"""What the trainer supports gives what one process in plain PyTorch gives."""

from __future__ import annotations

import pytest

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "bfloat16_parameters": 5e-2}
"""Largest difference in any parameter; 1e-5 where nothing is rounded to half precision."""


@pytest.mark.process
@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.matrix), 3])
def test_every_feature_gives_what_one_process_gives(run_workers, num_workers):
    """Schedulers, clipping, precision, accumulation, freezing, odd models and batches."""
    for errors in run_workers("features", num_workers):
        assert len(errors) == 17
        wrong = {name: e for name, e in errors.items() if not e <= TOLERANCE.get(name, 1e-5)}
        assert wrong == {}
