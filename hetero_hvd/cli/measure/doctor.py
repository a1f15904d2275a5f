"""`hetero-hvd doctor`: what this machine, or each node, can train with."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_hvd.cli.lines import add_json, show
from hetero_hvd.cli.nodes_to_ask import add_timeout, check_timeout, none_to_ask
from hetero_hvd.cli.settings import add_nodes_file, load
from hetero_hvd.cli.table import print_table
from hetero_hvd.cli.train.run import check_script
from hetero_hvd.config import NodeConfig
from hetero_hvd.config.launchers import SSH
from hetero_hvd.core.shards.fitting import fitting_in_words, largest_models
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.kubernetes.options import DEFAULT_NAME, places_of
from hetero_hvd.errors import UserError
from hetero_hvd.probes.training_packages import require_training
from hetero_hvd.remote.worker_memories import worker_memories

if TYPE_CHECKING:
    from hetero_hvd.remote.node_findings import NodeReport, Reference

USAGE = "%(prog)s [--json] [-f nodes.yaml [[--] train.py [arguments]] | --kubernetes [NAME]]"
TAKES_SCRIPT = True
HELP = """\
Without -f: what is installed on this machine, and what will not work and why. With -f: the same of
all nodes of a file, over ssh and at the same time: whether they can be reached, have the software
of this machine, and reach this machine and each other; clocks, GPUs, memory, room on disks. With a
script also: whether it is there, the same as here, and what its arguments name. With --kubernetes
inside a pod of a job: keys, volumes, network, cores, memory and GPUs of that pod. With and without
-f also: how large a model the workers' memories hold, with the optimizer's state whole or in parts.

Exit code 0: training can start; 1: it cannot, on one of the nodes, or in this pod.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_json(command)
    add_timeout(command)
    command.add_argument(
        "--kubernetes",
        nargs="?",
        const=DEFAULT_NAME,
        metavar="NAME",
        help="look at the pod in which this is called, of the job of that name "
        f"(default: {DEFAULT_NAME}): kubectl exec POD -- hetero-hvd doctor --kubernetes",
    )
    add_nodes_file(command, is_optional=True)


def act(arguments: argparse.Namespace) -> int:
    """Diagnose; 1 if it cannot train."""
    check_timeout(arguments)
    if arguments.nodes_files and arguments.kubernetes is not None:
        raise UserError("--kubernetes looks at this pod, -f at the nodes of a file: give one")
    if arguments.nodes_files:
        return _act_on_nodes(arguments)
    if arguments.command:
        raise UserError("a script is looked for on nodes: hetero-hvd doctor -f nodes.yaml -- ...")
    if arguments.kubernetes is not None:
        return _act_in_pod(arguments)
    from hetero_hvd.probes.doctor import diagnose  # noqa: PLC0415 - only this command needs it

    diagnosis = diagnose()
    facts = diagnosis.as_dict()
    memories = worker_memories([(NodeConfig(name="here"), facts)])
    if arguments.json:
        print(json.dumps(facts | _fitting(memories), indent=2))
    else:
        print(diagnosis.text())
        _show_fitting(memories)
    return 0 if diagnosis.can_train else 1


def _fitting(memories: Mapping[str, float]) -> dict[str, Any]:
    """How large a model fits, for JSON."""
    return {"fits": largest_models(memories)._asdict() if memories else None}


def _show_fitting(memories: Mapping[str, float]) -> None:
    """The same, a line for each way."""
    for line in fitting_in_words(memories) if memories else ():
        show(line)


def _act_in_pod(arguments: argparse.Namespace) -> int:
    """Examine this pod; 1 if it cannot take part."""
    from hetero_hvd.pod.examination import examine  # noqa: PLC0415 - not for all
    from hetero_hvd.probes.doctor import diagnose  # noqa: PLC0415

    places = places_of(checks.name("--kubernetes", arguments.kubernetes))
    findings = list(examine(places, lambda: diagnose().devices))
    can_train = not any(finding.stops_training for finding in findings)
    if arguments.json:
        lines = [asdict(finding) for finding in findings]
        print(json.dumps({"findings": lines, "can_train": can_train}, indent=2))
        return 0 if can_train else 1
    rows = [
        (one.what, one.found, f"{one.mark}: {one.to_do}" if one.to_do else one.mark)
        for one in findings
    ]
    print_table(("what", "found", "to do"), rows, ends_in_sentences=True)
    print("This pod can take part." if can_train else "This pod cannot take part.")
    return 0 if can_train else 1


def _act_on_nodes(arguments: argparse.Namespace) -> int:
    """Examine all nodes; 1 if one cannot train."""
    from hetero_hvd.remote.examination import Examination  # noqa: PLC0415 - not for all
    from hetero_hvd.remote.node_findings import report_on  # noqa: PLC0415

    cluster = load(arguments).current
    left_out = [node for node in cluster.nodes if not (node.is_local or node.kind == SSH)]
    if len(left_out) == len(cluster.nodes):
        raise none_to_ask(cluster, "doctor")
    if arguments.command:
        check_script(arguments.command, cluster.nodes)
    require_training("the driver of a job")
    script, paths = named_in(arguments.command)
    reference = _reference(script)
    examination = Examination(
        cluster, script=script, paths=paths, timeout_seconds=arguments.timeout
    )
    reports = [report_on(facts, reference) for facts in examination.run()]
    can_train = all(report.can_train for report in reports)
    able = [report.facts for report in reports if report.can_train]
    memories = worker_memories((facts.node, facts.seen.get("diagnosis", {})) for facts in able)
    if arguments.json:
        nodes = [report.as_dict() for report in reports]
        names = [node.name for node in left_out]
        found = {"nodes": nodes, "left_out": names, "can_train": can_train}
        print(json.dumps(found | _fitting(memories), indent=2))
        return 0 if can_train else 1
    headings = ("node", "way", "software", "files", "reaches", "machine", "to do")
    rows = [_row(report, reference) for report in reports]
    print_table(headings, rows, ends_in_sentences=True)
    for node in left_out:
        show(f"{node.name}: left out, it has launcher {node.launcher}: hetero-hvd nodes")
    _show_fitting(memories)
    print("Training can start." if can_train else "Training cannot start.")
    return 0 if can_train else 1


def named_in(command: Sequence[str]) -> tuple[str | None, list[str]]:
    """The script of a command, and the files and folders here that its arguments name."""
    script = next((word for word in command[:2] if word.endswith(".py")), None)
    words = [word.partition("=")[2] or word for word in command if word != script]
    paths = [word for word in words if not word.startswith("-") and _is_here(word)]
    return script, paths


def _is_here(word: str) -> bool:
    """Whether it names a file or folder; a text that is too long for a name does not."""
    with suppress(OSError):
        return Path(word).exists()
    return False


def _reference(script: str | None) -> Reference:
    """What each node should have: what there is here.

    Raises:
        UserError: The script cannot be read here.
    """
    from hetero_hvd.probes.doctor import version_of  # noqa: PLC0415 - only this command needs it
    from hetero_hvd.remote.bundle import PACKAGE  # noqa: PLC0415
    from hetero_hvd.remote.node_findings import Reference  # noqa: PLC0415
    from hetero_hvd.remote.programs.examination_program import (  # noqa: PLC0415
        PACKAGES,
        digest_of,
    )

    digest = None
    if script is not None:
        try:
            digest = hashlib.sha256(Path(script).read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(f"{script}: {error.strerror} here, so it cannot be compared") from error
    versions = {name: version_of(name) for name in PACKAGES}
    return Reference(
        versions=versions | {"python": platform.python_version()},
        digest=digest_of(PACKAGE),
        script=(script, digest) if script and digest else None,
        directory=str(Path.cwd()),
    )


def _row(report: NodeReport, reference: Reference) -> tuple[str, ...]:
    """A node's cells of the table."""
    facts, seen = report.facts, report.facts.seen
    if facts.failure is not None:
        return (facts.node.name, "none", *[""] * 4, "\n".join(_to_do(report)))
    way = "here" if facts.node.is_local else f"ssh {facts.login_seconds:.1f} s"
    reached = [peer for peer, why_not in facts.peers.items() if not why_not]
    lines = (
        [way, f"clock {1e3 * facts.clock_offset_seconds:+.0f} ms"],
        _software(report, reference),
        _files(report, reference),
        [f"{len(reached)} of {len(facts.peers)}"],
        _machine(seen),
        _to_do(report),
    )
    return (facts.node.name, *("\n".join(cell) for cell in lines))


def _software(report: NodeReport, reference: Reference) -> Iterator[str]:
    from hetero_hvd.remote.node_findings import mismatches_of  # noqa: PLC0415 - not for all

    mismatches = mismatches_of(report.facts, reference)
    yield from (f"{one.what} {one.found}" if one.found else f"no {one.what}" for one in mismatches)
    if not mismatches:
        is_same = report.facts.seen["digest"] == reference.digest
        yield "as here" if is_same else "other files"


def _files(report: NodeReport, reference: Reference) -> Iterator[str]:
    seen = report.facts.seen
    if not seen["directory"]:
        yield "no folder"
    elif reference.script is not None and seen["script"] != reference.script[1]:
        yield "other script" if seen["script"] else "no script"
    elif not seen["missing"]:
        yield "as here" if reference.script else "folder"
    yield from (f"no {path}" for path in seen["missing"])


def _machine(seen: Mapping[str, Any]) -> Iterator[str]:
    if hardware := seen.get("diagnosis", {}).get("hardware"):
        yield f"{hardware['cores']:g} cores"
        yield _gigabytes(hardware["memory_bytes"])
        gpus = [f"{gpu['name']} {_gigabytes(gpu['memory_bytes'])}" for gpu in hardware["gpus"]]
        yield from gpus or seen["diagnosis"].get("devices") or ["no GPU"]
    yield f"disk {_gigabytes(seen['disk_bytes'])}"
    yield f"shm {_gigabytes(seen['shm_bytes'])}"


def _to_do(report: NodeReport) -> Iterator[str]:
    for problem in report.problems:
        mark = "ERROR" if problem.stops_training else "note"
        yield f"{mark}: {problem.what}; {problem.consequence}. To do: {problem.remedy}"
    if not report.problems:
        yield "nothing"


def _gigabytes(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 2**30:.1f} GiB"
