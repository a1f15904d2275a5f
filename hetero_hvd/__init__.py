"""Train one PyTorch model on machines of unequal speed, through Elastic Horovod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_hvd.errors import HeteroHvdError, UserError
from hetero_hvd.probes.training_packages import imported_when_asked
from hetero_hvd.refusal import refuse_in_one_line
from hetero_hvd.version import __version__

if TYPE_CHECKING:
    from hetero_hvd.discovery.submission.queue_client import submit
    from hetero_hvd.worker.model.sync_batch_norm import SyncBatchNorm, convert_sync_batch_norm
    from hetero_hvd.worker.recovery.checkpoints.reading import read_checkpoint
    from hetero_hvd.worker.session.worker_context import device, init
    from hetero_hvd.worker.timing.named_phases import phase
    from hetero_hvd.worker.trainer import Trainer

__all__ = [
    "HeteroHvdError",
    "SyncBatchNorm",
    "Trainer",
    "UserError",
    "__version__",
    "convert_sync_batch_norm",
    "device",
    "init",
    "phase",
    "read_checkpoint",
    "submit",
]

_HOMES = {
    "SyncBatchNorm": "hetero_hvd.worker.model.sync_batch_norm",
    "convert_sync_batch_norm": "hetero_hvd.worker.model.sync_batch_norm",
    "Trainer": "hetero_hvd.worker.trainer",
    "device": "hetero_hvd.worker.session.worker_context",
    "init": "hetero_hvd.worker.session.worker_context",
    "phase": "hetero_hvd.worker.timing.named_phases",
    "read_checkpoint": "hetero_hvd.worker.recovery.checkpoints.reading",
    "submit": "hetero_hvd.discovery.submission.queue_client",
}

__getattr__ = imported_when_asked(__name__, _HOMES)

refuse_in_one_line()  # from here on, as a script may give anything
