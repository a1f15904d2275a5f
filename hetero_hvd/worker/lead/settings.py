"""What a run without our driver is to be like, as the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero_hvd.config import JobConfig
from hetero_hvd.config.variables import RecordConfig
from hetero_hvd.core.balance.settings import BalanceConfig


@dataclass(frozen=True, kw_only=True)
class LeadSettings:
    """By what rank 0 leads.

    Attributes:
        balance: How it divides the batch.
        job: Other settings of a job.
        record: What is to be left of the run.
        has_page: Whether the live page is wanted.
        environment: Variables of this process; what is secret among them is hidden in the record.
    """

    balance: BalanceConfig = field(default_factory=BalanceConfig)
    job: JobConfig = field(default_factory=JobConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    has_page: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
