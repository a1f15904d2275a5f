"""All commands, by what one wants to do."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple


class Command(NamedTuple):
    """What is known of a command before its module is imported, which takes time.

    Attributes:
        module: In a room of this package: it has `add_arguments` and `act`, and if it has more to
            say HELP and USAGE; TAKES_SCRIPT, if a script of the user's may follow.
        summary: For the list of all, without a capital and a full stop.
        example: Words after `hetero-hvd`, as one would type them.
    """

    module: str
    summary: str
    example: str


GROUPS = {
    "Train": {
        "run": Command("train.run", "train on all nodes", "run train.py --epochs 10"),
        "trial": Command(
            "train.trial",
            "train, and measure which nodes and settings are worth it",
            "trial --for money train.py",
        ),
        "submit": Command(
            "queue.submit", "give the queue a job", "submit --min 1 --max 4 -- train.py"
        ),
        "queue": Command(
            "queue.queue",
            "list the jobs of the queue, say why one waits, cancel, hold or read it",
            "queue why 12",
        ),
        "drain": Command(
            "train.drain", "let a node of a running job go, without losing a step", "drain gamma"
        ),
        "trace": Command(
            "train.trace",
            "record the next steps of a running job with torch's profiler",
            "trace --steps 5 --workers alpha:0",
        ),
    },
    "Watch and compare runs": {
        "top": Command("watch.top", "show who trains, how fast, and who is slow and why", "top"),
        "report": Command(
            "watch.report",
            "tell what limited a recorded or running job, with evidence and the next step",
            "report latest",
        ),
        "runs": Command(
            "watch.runs",
            "list the recorded runs of a folder with tags, metrics, speed and verdict",
            "runs --where 'accuracy > 0.9' --sort 'accuracy desc'",
        ),
        "compare": Command(
            "watch.compare",
            "tell how runs differ: what was tried, metrics, loss, speed; of reproducible ones the "
            "bits",
            "compare first second",
        ),
        "cost": Command(
            "watch.cost",
            "tell what a run cost in money and energy, and whether it had to",
            "cost latest --to 'accuracy >= 0.9'",
        ),
        "advise": Command(
            "watch.advise",
            "tell what to change about a run or machines, what that brings, and how sure it is",
            "advise latest",
        ),
        "export": Command(
            "watch.export",
            "write a run's figures to a file, a database, TensorBoard, W&B, MLflow or Prometheus",
            "export latest --to csv:figures.csv",
        ),
    },
    "Nodes": {
        "nodes": Command("cluster.nodes", "list the nodes", "nodes --discover"),
        "nodes hosts": Command(
            "cluster.hosts", "list the hosts for horovodrun", "nodes hosts -f nodes.yaml"
        ),
        "nodes hardware": Command(
            "measure.hardware",
            "say what this machine, or each node, is made of, and who uses its GPUs",
            "nodes hardware -f nodes.yaml",
        ),
        "config": Command(
            "cluster.config", "list every setting and where its value came from", "config"
        ),
        "install": Command("cluster.install", "put hetero_hvd on nodes, over ssh", "install"),
        "doctor": Command(
            "measure.doctor",
            "say what this machine, or each node, can train with, and what not",
            "doctor -f nodes.yaml",
        ),
        "benchmark": Command(
            "measure.benchmark",
            "measure how fast each node is, and how fast it trains your model",
            "benchmark -f nodes.yaml -- train.py",
        ),
        "benchmark collectives": Command(
            "measure.bench_comm",
            "measure the collective operations, and each link, on the cluster",
            "benchmark collectives --seconds 60",
        ),
        "simulate": Command(
            "measure.simulate",
            "compare balancing policies, or a queue's, on a cluster that is described",
            "simulate --speeds 1600,800,400",
        ),
    },
    "Services and files for them": {
        "agent": Command(
            "cluster.agent",
            "announce this machine as a node and start its workers for drivers with the same key",
            "agent --key-file cluster.key",
        ),
        "hub": Command(
            "record.hub",
            "store what all agents of the cluster tell of their nodes, for recordings",
            "hub --key-file cluster.key",
        ),
        "record": Command(
            "record.record",
            "start, stop and cut recordings of what all machines of the cluster do",
            "record start monday --every 1s",
        ),
        "key": Command(
            "cluster.key",
            "make a cluster key, to be copied to all nodes, or a token for a page",
            "key cluster.key",
        ),
        "key certificates": Command(
            "cluster.certificates",
            "make TLS files for nodes, and the authority that signs them",
            "key certificates tls driver alpha,10.0.0.5",
        ),
        "deploy": Command(
            "deploy.deploy",
            "write the files that start a job on Kubernetes or Slurm, or the demo by Docker "
            "Compose",
            "deploy slurm files --pool gpu:4 -- train.py",
        ),
        "deploy monitoring": Command(
            "cluster.stack",
            "write the files with which Prometheus, Alertmanager and Grafana watch runs",
            "deploy monitoring watch --runs runs",
        ),
    },
}
"""A name of two words is of a command that stands beside the one of the first word."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

ALIASES = {
    "bench-comm": ("benchmark", "collectives"),
    "certificates": ("key", "certificates"),
    "discover": ("nodes", "hosts"),
    "hardware": ("nodes", "hardware"),
    "horovodrun-hosts": ("nodes", "hosts"),
    "stack": ("deploy", "monitoring"),
}
"""Former names, which go on to work, to the words that stand for them now."""


def module_of(name: str) -> ModuleType:
    """The module of a command; only the one that is called is imported."""
    return importlib.import_module(f"hetero_hvd.cli.{COMMANDS[name].module}")
