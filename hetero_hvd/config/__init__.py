"""nodes.yaml, environment and flags as frozen, checked settings; the only reader of YAML."""

from hetero_hvd.config.cluster import ClusterConfig, GuardConfig
from hetero_hvd.config.effective_settings import effective_settings
from hetero_hvd.config.job import JOB_SETTINGS, JobConfig
from hetero_hvd.config.node import EmulateConfig, NodeConfig
from hetero_hvd.config.nodes_file import NodesFile
from hetero_hvd.config.resolve import load_cluster

__all__ = [
    "JOB_SETTINGS",
    "ClusterConfig",
    "EmulateConfig",
    "GuardConfig",
    "JobConfig",
    "NodeConfig",
    "NodesFile",
    "effective_settings",
    "load_cluster",
]
