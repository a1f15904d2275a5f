"""The settings of the job, each declared once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from hetero_hvd.config.setting import check, setting, settings_of
from hetero_hvd.config.value_types import (
    CHECKPOINT_URL,
    EXPORTS,
    HOST,
    HUB,
    METRIC,
    NAMES,
    OWN_FOLDER,
    PATH,
    STEPS,
    WORKERS,
    boolean,
    choice,
    integer,
    is_loopback,
    number,
)
from hetero_hvd.core.balance.policies.registry import RULES
from hetero_hvd.core.balance.settings import DEFAULT_RULE, CalibrateMode
from hetero_hvd.core.membership.set_aside import SetAsideMode
from hetero_hvd.messages.launch import (
    CPU_CAPABILITIES,
    MODE_NAMES,
    SWITCHES,
    SYNCHRONOUS,
    CpuCapability,
    ModeName,
    asked_mode,
)

MULTICAST_PORT = 5353
"""UDP; what discovery listens on where multicast reaches."""

MAX_TRACE_STEPS = 200
"""Of one window: the profiler keeps all of it in memory."""


def traced_steps(text: str | None) -> tuple[int, int]:
    """First step of a window and the one after its last; equal for no window."""
    first, _, last = (text or "-1:-1").partition(":")
    return int(first), int(last)


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """How the job runs; each also an environment variable and a flag."""

    min_np: int = setting(integer(1), "wait, or pause, until there are so many workers", default=1)
    max_np: int | None = setting(
        integer(1), "use at most so many workers", default=None, default_text="all"
    )
    balance: bool = setting(boolean(), "give each worker the share that it can carry", default=True)
    set_aside: SetAsideMode = setting(
        choice(*get_args(SetAsideMode)),
        "leave members without samples out while the others are faster without them, until one of "
        "these is lost; `auto`: two members stay at least, else the state of the training would be "
        "in one place; `always`: one may be alone; needs balance; see docs/guide/trainer.md",
        default="auto",
    )
    set_aside_seconds: float = setting(
        number(minimum=0),
        "so long members must have had no samples before the others try without them",
        default=30.0,
    )
    rule: str = setting(
        choice(*RULES),
        "how shares follow from timings: "
        + "; ".join(f"`{name}` {rule.words}" for name, rule in RULES.items()),
        default=DEFAULT_RULE,
    )
    remember: bool = setting(
        boolean(),
        "keep what is learnt about the workers beside the output folder, in curves.json, so "
        "that the same training starts balanced next time",
        default=True,
    )
    explain: bool = setting(
        boolean(), "print every decision of the balancer and why", default=False
    )
    mode: ModeName = setting(
        choice(*MODE_NAMES),
        "how to train, where the script does not say; each of the other modes has a switch of its "
        "name as well",
        default=SYNCHRONOUS,
    )
    reproducible: bool = setting(
        boolean(),
        "train to the same bits on any cluster and through any fault; see "
        "docs/guide/reproducibility.md for what that costs",
        default=False,
    )
    grain: int = setting(
        integer(1),
        "samples of one forward and backward in the reproducible mode, which plans in whole "
        "grains; must divide the global batch",
        default=16,
    )
    cpu_capability: CpuCapability = setting(
        choice(*CPU_CAPABILITIES),
        "vector instructions that the reproducible mode's CPU kernels keep to, so that unlike "
        "processors of one vendor give the same bits: `auto` is avx2; `native` whatever each has: "
        "then all must be of one model",
        default="auto",
    )
    fingerprint_steps: int = setting(
        integer(0),
        "steps between two fingerprints in the reproducible mode; 0 = after each epoch only",
        default=0,
    )
    staleness_bound: int = setting(
        integer(0, 8),
        "steps that may be under way while the next one is computed; hides jitter and slow "
        "links, see docs/guide/staleness.md",
        default=0,
    )
    staleness_warmup_steps: int = setting(
        integer(0), "first steps without staleness, as early gradients change fast", default=100
    )
    wait_free: bool = setting(
        boolean(),
        "no plan: each worker computes until the step before is reduced; see "
        "docs/guide/staleness.md",
        default=False,
    )
    baseline_steps: int = setting(
        integer(0), "first steps with uniform shares, so that the summary can compare", default=0
    )
    torchrun_variables: bool = setting(
        boolean(),
        "give each worker RANK, WORLD_SIZE, LOCAL_RANK and what else torchrun sets, as they are "
        "when it starts, for a script that reads them; see docs/guide/migrate.md",
        default=False,
    )
    calibrate: CalibrateMode = setting(
        choice(*get_args(CalibrateMode)),
        "`auto`: workers of whom nothing is known measure themselves before their first step, by "
        "passes that are thrown away, so that it is balanced already; `never`: for a loss function "
        "that has effects of its own, and for machines that others use, whose first passes tell "
        "little; see docs/guide/trainer.md",
        default="never",
    )
    output: str | None = setting(
        OWN_FOLDER,
        "folder of this run alone, for logs, records and checkpoints",
        default=None,
        default_text="runs/ and the start time in UTC",
    )
    start_timeout_seconds: float = setting(
        number(above=0),
        "in which a worker that is not ready yet may do nothing; what its script computes "
        "before the loop has the time that it needs, unless min_np workers are ready",
        default=60.0,
    )
    device_wait_seconds: float = setting(
        number(minimum=0),
        "so long a job that no worker of which has begun waits for devices that other jobs have",
        default=10.0,
    )
    heartbeat_timeout_seconds: float = setting(
        number(above=0), "silence after which a worker is killed and replaced", default=4.0
    )
    hang_timeout_seconds: float = setting(
        number(above=0),
        "shortest time after which a worker that hangs in its own part of a step (its data "
        "loader, for example) ends itself; 20 times the usual duration if that is longer",
        default=30.0,
    )
    checkpoint_seconds: float = setting(
        number(minimum=0), "between two checkpoints; 0 = none", default=60.0
    )
    checkpoint_url: str | None = setting(
        CHECKPOINT_URL,
        "where checkpoints are kept so that any node can go on from them; see "
        "docs/guide/checkpoints.md",
        default=None,
        default_text="the output folder",
    )
    checkpoint_keep: int = setting(integer(1), "newest checkpoints that are kept", default=2)
    checkpoint_best: str | None = setting(
        METRIC,
        "metric of evaluate() whose best checkpoint is kept as well; with - in front, less is "
        "better",
        default=None,
        default_text="none",
    )
    gloo_timeout_seconds: int = setting(
        integer(1, 86400), "longest wait inside one collective before it fails", default=30
    )
    elastic_timeout_seconds: float = setting(
        number(above=0), "wait for min_np workers before giving up; Horovod's own", default=600.0
    )
    leave_seconds: float = setting(
        number(minimum=0),
        "inside a Slurm job: so long before its time limit the workers are asked to end, with a "
        "checkpoint; see docs/guide/slurm.md",
        default=60.0,
    )
    leave_stagger_seconds: float = setting(
        number(minimum=0),
        "a part of it, which follows from the job's number, is added to leave_seconds, so that "
        "jobs with one end do not all write at the same time",
        default=0.0,
    )
    max_restarts: int = setting(
        integer(0), "restarts of one slot within 10 minutes; then it is given up", default=3
    )
    tls_file: str | None = setting(
        PATH,
        "made by hetero-hvd key certificates for `driver`; agents are then reached by certificates "
        "of that authority, not by the cluster key",
        default=None,
        default_text="the cluster key",
    )
    driver_address: str | None = setting(
        HOST,
        "where the workers reach the driver",
        default=None,
        default_text="chosen for each node",
    )
    http_address: str = setting(
        HOST,
        "where the live page listens; other than loopback needs http_token_file",
        default="127.0.0.1",
    )
    http_port: int = setting(
        integer(0, 65535), "of the live page; 0 = any free one, printed", default=0
    )
    http_token_file: str | None = setting(
        PATH,
        "file of mode 0600 with the token for looking",
        default=None,
        default_text="no token needed",
    )
    http_operate_token_file: str | None = setting(
        PATH,
        "file of mode 0600 with the token for draining and stopping over HTTP",
        default=None,
        default_text="nobody may",
    )
    http_certificate: str | None = setting(
        PATH, "TLS certificate, PEM", default=None, default_text="no TLS"
    )
    http_key: str | None = setting(PATH, "its private key, PEM", default=None, default_text="none")
    http_client_ca: str | None = setting(
        PATH,
        "clients must show a certificate of this CA, PEM",
        default=None,
        default_text="none asked for",
    )
    discover: bool = setting(
        boolean(),
        "also use nodes that announce themselves in the local network, see docs/guide/discovery.md",
        default=False,
    )
    listen: int = setting(
        integer(0, 65535),
        "UDP port at which agents announce themselves to this machine from beyond a router, by "
        "hetero-hvd agent --announce-to; 0 = none",
        default=0,
    )
    cluster_key_file: str | None = setting(
        PATH, "file made by hetero-hvd key; agents hold the same", default=None, default_text="none"
    )
    hub: str = setting(
        HUB,
        "HOST:PORT of the hub that lists this run and records its phases, see "
        "docs/guide/recordings.md; auto: the one that announces itself with the key of "
        "cluster_key_file",
        default="auto",
    )
    allow: str | None = setting(
        NAMES, "of the announced nodes, use these only", default=None, default_text="all"
    )
    log_format: str = setting(
        choice("text", "json"),
        "of the files in the output folder's logs/; json: a record a line with run_id, node, "
        "slot, rendezvous_id, step, level and message. The terminal has text either way",
        default="text",
    )
    trace_steps: str | None = setting(
        STEPS,
        "steps that torch's profiler records into traces/, for example 100:110; 200 at most",
        default=None,
        default_text="none",
    )
    trace_workers: str | None = setting(
        WORKERS, "record these only, for example alpha:0", default=None, default_text="all"
    )
    trace_timeline: bool = setting(
        boolean(), "record Horovod's timeline of those steps, too", default=False
    )
    nvtx: bool = setting(
        boolean(),
        "show the phases of a step as NVTX ranges to Nsight and other profilers; without CUDA it "
        "has no effect, which is said",
        default=False,
    )
    export: tuple[str, ...] = setting(
        EXPORTS,
        "where the run's figures go while it lasts, see docs/operations/run-records.md; passwords "
        "best from the environment",
        default=(),
        default_text="nowhere else",
    )
    progress_seconds: float = setting(number(above=0), "between two progress lines", default=2.0)
    sample_seconds: int = setting(
        integer(0, 3600),
        "between two samples of what a node and its GPUs do, see docs/operations/hardware.md; "
        "0 = none",
        default=1,
    )
    min_gain_ratio: float = setting(
        number(minimum=0, maximum=1),
        "smallest predicted gain in step time worth a new plan; below it is noise",
        default=0.005,
    )

    def __post_init__(self) -> None:
        """Check."""
        check(self, self._relations())

    @property
    def training_mode(self) -> ModeName:
        """The mode that is asked for, by its name or by its switch."""
        named = None if self.mode == SYNCHRONOUS else self.mode
        return asked_mode(named, {name: getattr(self, name) or None for name in SWITCHES})

    def _relations_of_discovery(self) -> Iterator[tuple[str, str]]:
        if self.discover and self.cluster_key_file is None:
            sources = "nodes.yaml, HETERO_HVD_CLUSTER_KEY_FILE or run's flag"
            words = f"must be given with discover, by {sources}; hetero-hvd key makes one"
            yield "cluster_key_file", f"found none, {words}"
        if self.listen and not self.discover:
            yield "listen", f"found {self.listen}, must be 0 without discover"
        if self.listen == MULTICAST_PORT:
            yield "listen", f"found {self.listen}, must be another port: that is of multicast"

    def _relations(self) -> Iterator[tuple[str, str]]:
        if self.max_np is not None and self.max_np < self.min_np:
            yield "max_np", f"found {self.max_np}, must be at least min_np, which is {self.min_np}"
        yield from self._relations_of_discovery()
        try:
            mode = self.training_mode
        except ValueError as error:
            name, _, complaint = str(error).partition(": ")
            yield name, complaint
            return
        is_reproducible = mode == "reproducible"
        if is_reproducible and self.staleness_bound:
            found = f"found {self.staleness_bound}, must be 0 in the reproducible mode"
            yield "staleness_bound", found
        if is_reproducible and not RULES[self.rule].plans_in_grains:
            able = " or ".join(name for name, rule in RULES.items() if rule.plans_in_grains)
            yield "rule", f"found {self.rule}, must be {able}: only that plans in whole grains"
        if not is_loopback(self.http_address) and self.http_token_file is None:
            found = f"found {self.http_address}, must be 127.0.0.1 unless http_token_file is given"
            yield "http_address", found
        first, last = traced_steps(self.trace_steps)
        if self.trace_steps is not None and not 0 < last - first <= MAX_TRACE_STEPS:
            yield "trace_steps", f"found {self.trace_steps}, must be 1 to {MAX_TRACE_STEPS} steps"
        if (self.http_certificate is None) != (self.http_key is None):
            yield "http_certificate", "must be given together with http_key"
        if self.http_client_ca is not None and self.http_certificate is None:
            yield "http_client_ca", "needs http_certificate and http_key"


JOB_SETTINGS = tuple(settings_of(JobConfig))
"""The settings that are also environment variables and flags."""

OF_THE_QUEUE = frozenset({"output", "discover", "min_np", "max_np"})
"""Settings that a hub's queue gives to its jobs: their folder, their nodes and how many of them."""
