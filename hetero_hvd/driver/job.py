"""One job from its start to its end: `run_job` ties servers, processes and Horovod together.

One asyncio loop in the main thread holds all state. Horovod's driver lives in threads of its own and
reaches the loop through `call_soon_threadsafe` only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd import channel
from hetero_hvd.config import NodesFile
from hetero_hvd.driver.discovery import Slot, Slots
from hetero_hvd.driver.elastic import AdoptingDriver, horovod_environment
from hetero_hvd.driver.launcher import WorkerProcess, count_gpus, exit_in_words, launch_order
from hetero_hvd.driver.ledger import MAX_RESETS_WITHOUT_STEP, Ledger
from hetero_hvd.driver.network import DriverAddresses
from hetero_hvd.driver.output import Console
from hetero_hvd.driver.rendezvous import Rendezvous
from hetero_hvd.driver.report import as_dict, as_text
from hetero_hvd.driver.server import ChannelServer
from hetero_hvd.errors import ConfigError, JobError, UserError
from hetero_hvd.messages import Admit, Crashed, FromWorker, Heartbeat, Ready, ResetRequested, Stop

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
REQUEST_SECONDS = 1.0
"""Between two requests to the workers for the same change of membership."""

LEAVE_SECONDS = 10.0
"""For a worker to end by itself once it is done or was let go."""

END_SECONDS = 8.0
"""For all processes to end after SIGTERM, which becomes SIGKILL after 5 s, everywhere."""


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        exit_code: For the command line.
        reason: In words.
        is_orderly: Whether the workers end by themselves.
    """

    exit_code: int
    reason: str
    is_orderly: bool = False


def run_job(nodes_file: NodesFile, command: tuple[str, ...]) -> int:
    """Train until the workers are done. Call it from the main thread: it handles Ctrl-C and SIGTERM.

    Args:
        nodes_file: The nodes and the job's settings; followed while the job runs.
        command: The user's script (a first word ending in `.py`) or program, with its arguments.

    Returns:
        The training's exit code; 130 or 143 after Ctrl-C or SIGTERM.

    Raises:
        UserError: The job cannot start or go on, for a reason that the user can remove.
    """
    job = nodes_file.current.job
    name = f"{datetime.now(timezone.utc):%Y-%m-%dT%H-%M-%SZ}"
    output = Path(job.output) if job.output else Path("runs", name)
    try:
        (output / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"job.output: {output} cannot be made: {error.strerror}") from error
    with log_file(output / "logs" / "driver.log"):
        return asyncio.run(_run(nodes_file, command, output))


async def _run(nodes_file: NodesFile, command: tuple[str, ...], output: Path) -> int:
    console = Console()
    try:
        return await Job(nodes_file, command, output, console).run()
    finally:
        console.close()


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Keep what we and Horovod log in a file, off the terminal."""
    root = logging.getLogger()
    level = root.level
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
