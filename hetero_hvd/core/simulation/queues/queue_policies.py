"""The policies of a queue by their names: one list, which the command and the docs follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.core.simulation.queues.our_policy import OurPolicy
from hetero_hvd.core.simulation.queues.queue_replay import ReplayPolicy
from hetero_hvd.core.simulation.queues.rigid_policies import (
    BackfillPolicy,
    BalancedPolicy,
    FairPolicy,
    FifoPolicy,
    OneKindPolicy,
)
from hetero_hvd.core.simulation.queues.round_policies import GavelPolicy, SiaPolicy

PolicyMaker = Callable[[Sequence[QueueDevice], QueueSettings], ReplayPolicy]

QUEUE_POLICIES: Mapping[str, PolicyMaker] = MappingProxyType(
    {
        "fifo": lambda devices, _: FifoPolicy(devices),
        "backfill": lambda devices, _: BackfillPolicy(devices),
        "backfill-one-kind": lambda devices, _: OneKindPolicy(devices),
        "backfill-balanced": lambda devices, _: BalancedPolicy(devices),
        "fair": lambda devices, _: FairPolicy(devices),
        "gavel": lambda devices, _: GavelPolicy(devices),
        "sia": lambda devices, _: SiaPolicy(devices),
        "ours": OurPolicy,
        "ours-blind": lambda devices, settings: OurPolicy(devices, settings, is_work_known=False),
    }
)
"""`ours-blind` is not told how much work jobs have, as of any command that is not our trainer."""
