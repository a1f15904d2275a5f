"""What the workers tell each other last, where no driver hears it from each of them."""

from __future__ import annotations

import logging

from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.session.worker_context import WorkerContext

logger = logging.getLogger(__name__)


def exchange_last_words(context: WorkerContext) -> None:
    """What is still to be told has no exchange of timings any more that takes it along.

    Args:
        context: This process in the job.
    """
    try:
        context.heard(gather_bytes(context.collective, context.payload(), "last words"))
    except Interrupted as fault:  # who has trained to the end may go before the others
        logger.info("not all last words are recorded: %s", fault)
