"""`hetero-hvd deploy kubernetes DIR`: a driver and agents as manifests for `kubectl apply`."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.cli.cluster.agent import CLOUDS
from hetero_hvd.config.paths import some_path
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.folder import FolderContents, write_folder
from hetero_hvd.deploy.kubernetes.chart import chart_files
from hetero_hvd.deploy.kubernetes.manifests import files
from hetero_hvd.deploy.kubernetes.options import DEFAULT_NAME, MAX_AGENTS, KubernetesJob
from hetero_hvd.deploy.script import read_script
from hetero_hvd.errors import UserError

SUMMARY = "write manifests for Kubernetes: a driver, agents with and without GPUs, their network"
KINDS = ("deployment", "statefulset", "daemonset")
MAX_GPUS = 16


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The flags."""
    add = command.add_argument
    add("--image", required=True, help="with hetero_hvd; docs/guide/containers.md says how to make")
    add("--name", default=DEFAULT_NAME, help="of the job, for all that is made (default: train)")
    add("--gpu", default="0", metavar="N", help="agents with GPUs (default: 0)")
    add("--cpu", default="0", metavar="N", help="agents without GPUs (default: 0)")
    add(
        "--agents",
        choices=KINDS,
        default=KINDS[0],
        help="what they are; a daemonset has one on each node: with --gpu 1 on those with GPUs, "
        "with --cpu 1 on those without (default: deployment)",
    )
    add("--gpus-per-agent", default="1", metavar="N", help="GPUs, and so workers (default: 1)")
    add("--agent-cpu", default="4", metavar="CORES", help="of each agent (default: 4)")
    add("--agent-memory", default="8Gi", metavar="BYTES", help="of each agent (default: 8Gi)")
    add("--shm", default="2Gi", metavar="BYTES", help="of that for /dev/shm (default: 2Gi)")
    add("--script", type=some_path, metavar="FILE", help="a script that is not in the image")
    _add_storage(command)
    add("--cloud", choices=CLOUDS, help="whose notices of interruption the agents ask for")
    add(
        "--monitoring-namespace",
        metavar="NAME",
        help="where Prometheus is, of its operator: a PodMonitor, and a way in for it",
    )
    add(
        "--helm",
        action="store_true",
        help="write a chart for Helm; image, command and numbers of agents are values of it, and "
        "the release's name that of the job",
    )
    add(
        "--annotate",
        action="store_true",
        help="let the driver tell the state of the run in annotations of its Job: the only thing "
        "that needs rights in the cluster, to patch that Job",
    )
    add("--allow-https", action="store_true", help="let the pods reach port 443 anywhere, for data")


def _add_storage(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--volume",
        metavar="BYTES",
        help="of a volume for runs and checkpoints that all pods share, ReadWriteMany (default: "
        "each pod has its own, which goes with it)",
    )
    add("--storage-class", metavar="NAME", help="of the volume (default: the cluster's)")
    add("--checkpoint-url", metavar="URL", help="s3://, gs://: where checkpoints are kept")
    add(
        "--s3-endpoint",
        metavar="URL",
        help="of the server that s3:// means, with its port, such as http://minio:9000 (default: "
        "Amazon's)",
    )


def write(arguments: argparse.Namespace) -> tuple[list[Path], str]:
    """Check everything, then write; gives the files, and what to do with them.

    Raises:
        UserError: Something is wrong; nothing is written then.
    """
    job = _job(arguments)
    folder: Path = arguments.folder
    plain, chart = files(job), chart_files(job)
    wanted, other = (chart, plain) if arguments.helm else (plain, chart)
    contents = {**dict.fromkeys(other), **wanted}  # never both in one folder
    written = write_folder(folder, FolderContents(files=contents), force=arguments.force)
    if arguments.helm:
        return written, f"  helm install {job.name} {folder}"
    return written, "\n".join(
        [
            *first_steps(job),
            f"  kubectl apply -f {folder}",
            f"  kubectl logs -f job/{job.driver}",
        ]
    )


def first_steps(job: KubernetesJob) -> tuple[str, ...]:
    """The keys of a job, before anything else."""
    return (
        "  hetero-hvd key cluster.key",
        "  hetero-hvd key token",
        f"  kubectl create secret generic {job.keys} --from-file=cluster.key --from-file=token",
    )


def _job(arguments: argparse.Namespace) -> KubernetesJob:
    if not arguments.command:
        raise UserError("no command: hetero-hvd deploy kubernetes DIR [options] -- train.py")
    most = 1 if arguments.agents == "daemonset" else MAX_AGENTS
    num_gpu_agents = checks.count("--gpu", arguments.gpu, 0, most)
    num_cpu_agents = checks.count("--cpu", arguments.cpu, 0, most)
    if not num_gpu_agents + num_cpu_agents:
        raise UserError("no agents: say how many with --gpu N, --cpu N or both")
    volume, storage_class = arguments.volume, arguments.storage_class
    if storage_class is not None and volume is None:
        raise UserError("--storage-class needs --volume: say how large")
    namespace = arguments.monitoring_namespace
    return KubernetesJob(
        name=checks.name("--name", arguments.name),
        image=checks.image("--image", arguments.image),
        command=checks.command(arguments.command),
        agents=arguments.agents,
        num_gpu_agents=num_gpu_agents,
        num_cpu_agents=num_cpu_agents,
        gpus_per_agent=checks.count("--gpus-per-agent", arguments.gpus_per_agent, 1, MAX_GPUS),
        agent_cpu=checks.cpu("--agent-cpu", arguments.agent_cpu),
        agent_memory=checks.memory("--agent-memory", arguments.agent_memory),
        shared_memory=_shared_memory(arguments),
        volume=None if volume is None else checks.memory("--volume", volume),
        storage_class=None
        if storage_class is None
        else checks.subdomain("--storage-class", storage_class),
        checkpoint_url=checks.checkpoint_url(arguments.checkpoint_url),
        s3_endpoint=None
        if arguments.s3_endpoint is None
        else checks.endpoint("--s3-endpoint", arguments.s3_endpoint),
        script=None if arguments.script is None else read_script(arguments.script),
        cloud=arguments.cloud,
        monitoring_namespace=None
        if namespace is None
        else checks.name("--monitoring-namespace", namespace, checks.MAX_LABEL),
        annotate=arguments.annotate,
        allow_https=arguments.allow_https,
    )


def _shared_memory(arguments: argparse.Namespace) -> str:
    found = checks.memory("--shm", arguments.shm)
    agent_memory = checks.memory("--agent-memory", arguments.agent_memory)
    if checks.num_bytes(found) >= checks.num_bytes(agent_memory):
        raise UserError(
            f"--shm: found {found!r}, must be less than --agent-memory, {agent_memory}, of which "
            "it is a part"
        )
    return found
