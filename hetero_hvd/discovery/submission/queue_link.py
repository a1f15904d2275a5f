"""What is said to the queue of a hub, through its socket or over HTTP."""

from __future__ import annotations

from typing import Annotated

import msgspec

from hetero_hvd.core.queue.jobs import MAX_ARRAY, JobPriority
from hetero_hvd.core.queue.measured.model_book import MAX_TRIALS
from hetero_hvd.discovery.submission.working_tree import MAX_TREE_BYTES

MAX_LINE_BYTES = 2**21
"""Of an order; the environment of a process is a part of one."""

MAX_DEVICES = 10_000
MAX_LOG_OFFSET = 2**62
Text = Annotated[str, msgspec.Meta(max_length=2**17, pattern=r"^[^\x00]*$")]
ShortText = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
ArrayIndex = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
VariableName = Annotated[str, msgspec.Meta(max_length=2**17, pattern=r"^[^=\x00]+$")]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)]


class SubmittedPlacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a set of nodes did in a trial; if it was not measured, what it was predicted to do."""

    nodes: Annotated[list[ShortText], msgspec.Meta(min_length=1, max_length=1000)]
    samples_per_second: Annotated[float, msgspec.Meta(gt=0, le=1e18)]
    is_measured: bool


class SubmittedTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trial that the script of a job has made.

    `age_seconds` is since it was over; `devices` says of each of its workers, `NODE:SLOT`, what it
    computed on, as in `WorkersJoined`.
    """

    run: ShortText
    age_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    global_batch_size: Annotated[int, msgspec.Meta(ge=1, le=10**12)]
    devices: Annotated[dict[ShortText, ShortText], msgspec.Meta(min_length=1, max_length=1000)]
    placements: Annotated[list[SubmittedPlacement], msgspec.Meta(max_length=100)]


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to run, as it was when it was submitted: nothing later changes it.

    `settings` are those of a job, by their names in nodes.yaml; `tree` is the SHA-256 of the packed
    working tree, of `tree_bytes`; `python` is the interpreter. `deadline_seconds` is from now on.
    `is_command` is of what is no training: it has `min_devices` until it ends. `array` has an index
    for each job that is wanted, at most `array_limit` of them at a time (0: any number); what is
    kept of one has its own index only. `trials` are of its script, the newest at the end.
    """

    command: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=10_000)]
    python: Text
    environment: dict[VariableName, Text]
    tree: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    tree_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_TREE_BYTES)]
    settings: dict[Text, Text] = {}
    pool: Text = "default"
    priority: JobPriority = "normal"
    min_devices: Count = 1
    max_devices: Count = 1
    needs: list[Text] = []
    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    deadline_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    after: list[int] = []
    is_command: bool = False
    time_limit_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    idle_limit_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    array: Annotated[list[ArrayIndex], msgspec.Meta(max_length=MAX_ARRAY)] = []
    array_limit: Annotated[int, msgspec.Meta(ge=0, le=MAX_ARRAY)] = 0
    trials: Annotated[list[SubmittedTrial], msgspec.Meta(max_length=MAX_TRIALS)] = []


class QueueOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line to the queue; behind that of a job its packed working tree follows.

    `pool` and `priority` are what `move` changes, `begin` is where `logs` goes on. Of orders that
    change something `jobs` names all that they are about; those of them that have ended stay so.
    """

    name: str
    job: int | None = None
    jobs: Annotated[list[int], msgspec.Meta(max_length=MAX_ARRAY)] = []
    submitted: SubmittedJob | None = None
    pool: Text = ""
    priority: JobPriority | None = None
    begin: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOG_OFFSET)] = 0


class QueueAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One line back: what came of it, or why nothing did."""

    done: object = None
    error: str = ""
    may_pass: bool = False


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job for a list: nothing of its arguments or environment, which may hold secrets."""

    job: int
    user: str
    pool: str
    priority: str
    state: str
    script: str
    devices: list[str]
    attempt: int
    why: str


class ListedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that the queue gives to jobs; `job` is null where nobody has it.

    `link_bytes_per_second` is the bus bandwidth of its node's link as jobs have measured it; null:
    not measured.
    """

    device: str
    pool: str
    kind: str
    condition: str
    job: int | None
    link_bytes_per_second: float | None = None


class QueueListing(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs that are kept, and all devices."""

    jobs: list[ListedJob]
    devices: list[ListedDevice]


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what a job has printed; `next` is where it goes on, `is_over`: nothing follows."""

    text: str
    next: int
    is_over: bool
