"""What this process is told at its start: the one place that reads our environment variables."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.config import JobConfig, variables
from hetero_hvd.config.setting import ENVIRONMENT_PREFIX, displayed
from hetero_hvd.config.variables import RecordConfig
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.errors import ConfigError, JobError, UserError
from hetero_hvd.exit_codes import EXIT_USER_ERROR
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import (
    LAUNCH_VARIABLE,
    SWITCHES,
    TLS_VARIABLE,
    WORKER_VARIABLE,
    NodeSettings,
    WorkerIdentity,
    WorkerLaunch,
    asked_mode,
    launch_from_text,
)
from hetero_hvd.probes.kernel.life_lock import LIFE_LOCK_VARIABLE
from hetero_hvd.probes.other_launchers import started_by
from hetero_hvd.worker.lead.settings import LeadSettings

BALANCE_VARIABLE = "HETERO_HVD_BALANCE"
BALANCING = {"balance", "rule", "baseline_steps", "calibrate", "min_gain_ratio"}
"""Settings of the balancer that are settings of a job, too."""

SECRETS = frozenset({TLS_VARIABLE})
_secrets: dict[str, str] = {}
CERTIFICATE = "-----BEGIN CERTIFICATE-----"

FIRST_SPEAKS_SECONDS = 10.0
"""The others of a foreign launcher wait for the first process, which says what is wrong: a launcher
ends all when one has ended."""


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What a worker is told at its start.

    Attributes:
        launch: The record of it.
        tls: Key and certificates for the channel, PEM; empty without a driver.
        lead: By what rank 0 leads the run without a driver.
        life_lock: What `hold_inherited` takes; empty without a driver.
    """

    launch: WorkerLaunch = field(default_factory=WorkerLaunch)
    tls: bytes = b""
    lead: LeadSettings = field(default_factory=LeadSettings)
    life_lock: str = ""

    @property
    def worker(self) -> WorkerId:
        """Its identity."""
        return self.launch.identity.worker

    @property
    def driver(self) -> tuple[str, int] | None:
        """`(address, port)` of our driver; None under `horovodrun` or alone."""
        return self.launch.identity.driver

    @property
    def node(self) -> NodeSettings:
        """This node's part of nodes.yaml that the worker needs."""
        return self.launch.node

    @property
    def capacity(self) -> int:
        """Largest local batch, samples; -1 = not limited."""
        return self.node.max_local_batch_size or -1

    def name(self, rank: int) -> str:
        """The worker in a sentence for all; without a driver its rank says more.

        Args:
            rank: In the rendezvous under way.
        """
        return f"rank {rank}" if self.driver is None else str(self.worker)


def in_step_of_slurm() -> bool:
    """Whether srun has started this: preemption, a time limit and each scancel send SIGTERM."""
    return "SLURM_STEP_ID" in os.environ


def is_under_driver() -> bool:
    """Whether our driver has started this process to train; what else it says is not read yet."""
    return WORKER_VARIABLE in os.environ


def is_alone() -> bool:
    """Whether no launcher has started this process: there are no other workers."""
    return not is_under_driver() and "HOROVOD_RANK" not in os.environ


def read_launch_settings(environment: Mapping[str, str] | None = None) -> LaunchSettings:
    """What the environment says; a script that runs alone is `localhost:0`.

    Without a driver the variables of `config.variables.ALONE_SETTINGS` make up the record. Once
    read, the job's secrets are taken out of this process's environment: what a script starts and
    what it logs has them no more.

    Args:
        environment: None: this process's own.

    Raises:
        UserError: A variable is malformed; the line names it.
        SystemExit: One of this process's own is, where no driver would tell of it: it is told. Or
            another launcher has started several processes, which would each train alone.
    """
    if environment is not None:
        return _settings_of(environment)
    if is_under_driver():
        return _settings_of(_own_environment())
    if is_alone() and (found := started_by(os.environ)) is not None:
        if found.rank == 0:  # one of them is enough
            script = Path(sys.argv[0]).name or "the script"
            sys.stderr.write(f"hetero-hvd: {found.why_not(script)}\n")
        else:
            time.sleep(FIRST_SPEAKS_SECONDS)
        raise SystemExit(EXIT_USER_ERROR)
    try:
        return _settings_of(_own_environment())
    except UserError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"hetero-hvd: {line}\n")
        raise SystemExit(EXIT_USER_ERROR) from None


def _settings_of(found: Mapping[str, str]) -> LaunchSettings:
    launch = launch_from_text(found.get(LAUNCH_VARIABLE) or "{}")
    if launch.identity.driver is None:
        return _alone(launch, found)
    tls = found.get(TLS_VARIABLE, "")
    if CERTIFICATE not in tls:
        raise JobError(
            f"{TLS_VARIABLE}: is missing or no certificate: only the process that the driver has "
            "started is a worker"
        )
    life_lock = found.get(LIFE_LOCK_VARIABLE, "")
    return LaunchSettings(launch=launch, tls=tls.encode(), life_lock=life_lock)


def unknown_variables() -> Iterator[str]:
    """A sentence for each variable of this process that looks like ours, and is none."""
    return variables.unknown(os.environ)


def _own_environment() -> Mapping[str, str]:
    """This process's variables; the secrets among them are no longer there for its children."""
    for name in SECRETS & os.environ.keys():
        _secrets[name] = os.environ.pop(name)
    return {**os.environ, **_secrets}


def _alone(launch: WorkerLaunch, environment: Mapping[str, str]) -> LaunchSettings:
    """What Horovod's launcher and the user say, where there is no driver."""
    if WORKER_VARIABLE in environment and LAUNCH_VARIABLE not in environment:
        raise JobError(
            f"{LAUNCH_VARIABLE}: is missing, though {WORKER_VARIABLE} is set: install the same "
            "version of hetero_hvd everywhere"
        )
    found = dict(environment)
    text = found.get(BALANCE_VARIABLE, "")
    balance = _balance_config(found.pop(BALANCE_VARIABLE)) if text.startswith("{") else None
    given = variables.given(variables.ALONE_SETTINGS, found)
    record = RecordConfig(**_taken(given, (s.name for s in variables.RECORD_SETTINGS)))
    of_leader = _taken(given, variables.OF_LEADER)
    has_page = "http_port" in of_leader
    if balance is None:
        balance = BalanceConfig(**{name: of_leader[name] for name in BALANCING & of_leader.keys()})
    else:
        of_leader |= {name: getattr(balance, name) for name in BALANCING}
    switches = {name: given.pop(name, None) or None for name in SWITCHES}
    job = _taken(given, launch.job.__struct_fields__)
    try:
        job["mode"] = asked_mode(job.get("mode"), switches, launch.job.mode)
    except ValueError as error:
        raise UserError(f"environment: {error}") from error
    host = re.sub(r"[^A-Za-z0-9.-]", "-", environment.get("HOROVOD_HOSTNAME", "localhost"))
    slot = int(environment.get("HOROVOD_LOCAL_RANK", "0"))
    launch = msgspec.structs.replace(
        launch,
        identity=WorkerIdentity(worker=WorkerId(host, slot), host=host),
        job=msgspec.structs.replace(launch.job, **job),
        **given,
    )
    try:
        config = JobConfig(**(job | of_leader))
    except ConfigError as error:
        in_json = BALANCING if text.startswith("{") else set()
        lines = (_with_variable(line, in_json) for line in error.problems)
        raise UserError("; ".join(lines)) from error
    lead = LeadSettings(
        balance=balance, job=config, record=record, has_page=has_page, environment=environment
    )
    return LaunchSettings(launch=launch, lead=lead)


def _taken(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of these names that were given; they are taken out."""
    return {name: given.pop(name) for name in names if name in given}


def _with_variable(problem: str, in_json: Container[str]) -> str:
    """What is wrong with a setting of the job, with the variable that it stands in.

    Args:
        problem: `setting: complaint`.
        in_json: The settings that `BALANCE_VARIABLE` has given.
    """
    name, _, complaint = problem.partition(": ")
    if name in in_json:
        return f"environment: {BALANCE_VARIABLE}: {problem}"
    return f"environment: {ENVIRONMENT_PREFIX}{name.upper()}: {complaint}"


def _balance_config(text: str) -> BalanceConfig:
    """All of the balancer's settings, as JSON."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        _check_known(given)
        JobConfig(**{name: given[name] for name in BALANCING & given.keys()})
        return msgspec.convert(given, BalanceConfig)
    except (msgspec.MsgspecError, UnicodeError, ConfigError) as error:
        line = "; ".join(str(error).splitlines())
        raise UserError(f"environment: {BALANCE_VARIABLE}: {line}") from error


def _check_known(names: Iterable[str]) -> None:
    known = [each.name for each in fields(BalanceConfig)]
    unknown = ", ".join(displayed(name) for name in names if name not in known)
    if unknown:
        raise ConfigError([f"unknown key {unknown}; known keys are {', '.join(map(repr, known))}"])
