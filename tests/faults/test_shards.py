"""An optimizer's state in parts on real workers: whoever is killed, no step is lost or repeated."""

from __future__ import annotations

import re

import pytest
import torch

from hetero_hvd import read_checkpoint
from tests.kit.fault_job import FaultJob, write_nodes

from .conftest import BATCH, SAMPLES, assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

NODES = ("north", "east", "south", "west")
STEPS = 40
EPOCHS = STEPS * BATCH // SAMPLES
SCRIPT = {
    "num_samples": SAMPLES,
    "batch_size": BATCH,
    "step_seconds": 0.01,
    "ballast": 3000,
    "options": {"shard_optimizer": True},
}
KEPT = {"checkpoint_seconds": 0.2}
ENDS = {"max_restarts": 0, "balance": False}
"""Each worker computes in each step: else its fault may not happen on a machine that others use."""

RESTARTS = ENDS | {"max_restarts": 2}


def kill(node, step):
    """Kill -9."""
    return {"worker": f"{node}:0", "step": step, "kind": "kill"}


def test_a_killed_worker_comes_back_and_fewer_go_on(tmp_path):
    """Its parts are served by others, and come back to it; then two workers go on from the disk.

    What is on the disk is what the optimizer itself would have left.
    """
    job = FaultJob(
        tmp_path,
        NODES[:3],
        faults=[kill("east", 12)],
        settings=RESTARTS | KEPT,
        epochs=EPOCHS,
        num_workers=3,
        patient_from=14,
        patient_seconds=2.0,
        **SCRIPT,
    )
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=EPOCHS, workers=[f"{node}:0" for node in sorted(NODES[:3])])
    logs = "".join(file.read_text() for file in (tmp_path / "out" / "logs").glob("*.log"))
    assert "of the optimizer's state are to move to other workers" in logs
    assert "of the optimizer's state have moved: each part is on two workers again" in logs
    newest = max((tmp_path / "out" / "checkpoints").glob("step-*"))
    assert len(list(newest.glob("part-*.pt"))) == 3
    assert "state" not in torch.load(newest / "state.pt", weights_only=True)["optimizer"]
    state = read_checkpoint(str(newest))
    assert state["position"]["applied_steps"] == STEPS
    shapes = {k: v["momentum_buffer"].shape for k, v in state["optimizer"]["state"].items()}
    assert shapes == {1: (8,), 2: (3000,)}
    second = FaultJob(
        tmp_path,
        NODES[:2],
        arguments=("--output", "second", "--resume", "out"),
        epochs=EPOCHS + 2,
        **SCRIPT,
    )
    assert second.wait() == 0, second.console
    results = [r for r in second.results() if r["applied_steps"] > STEPS]
    assert [result["times_used"] for result in results] == [[EPOCHS + 2] * 2] * 2
    assert len({result["state"] for result in results}) == 1


PLACES = [(4, first, 13) for first in range(14)] + [(3, first, 20) for first in range(21)]
"""(workers, step of the first kill, steps between two)."""


@pytest.mark.matrix
@pytest.mark.parametrize(("num_workers", "first", "apart"), PLACES)
def test_kills_at_every_step_lose_none(tmp_path, num_workers, first, apart):
    """All workers but one are killed, one by one: at each step of a run of forty once."""
    nodes = NODES[:num_workers]
    steps = range(first, STEPS, apart)[: num_workers - 1]
    faults = [kill(node, step) for node, step in zip(nodes, steps, strict=False)]
    job = FaultJob(tmp_path, nodes, faults=faults, settings=ENDS, epochs=EPOCHS, **SCRIPT)
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=EPOCHS, workers=[f"{node}:0" for node in sorted(nodes[len(steps) :])])
    assert max(job.recovery_seconds(index) for index in range(len(steps))) < 5


@pytest.mark.matrix
@pytest.mark.parametrize("delay_seconds", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("num_workers", [3, 4])
def test_two_kills_in_a_row_lose_no_step(tmp_path, num_workers, delay_seconds):
    """The second one while the first is mended: both holders of a part may be gone, which is said.

    No step is counted twice or left out, whether the others go on or go back to the checkpoint.
    """
    nodes = NODES[:num_workers]
    second = {"worker": f"{nodes[1]}:0", "kind": "kill"}
    second |= {"after_fault": 0, "delay_seconds": delay_seconds}
    job = FaultJob(
        tmp_path,
        nodes,
        faults=[kill(nodes[0], 3 * STEPS // 2), second],
        settings=ENDS | KEPT,
        epochs=4 * EPOCHS,
        **SCRIPT,
    )
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=4 * EPOCHS, workers=[f"{node}:0" for node in sorted(nodes[2:])])


@pytest.mark.matrix
def test_a_worker_that_comes_in_the_midst_of_a_cut_changes_nothing(tmp_path):
    """Few blocks move in each step: those who had begun to send cut anew, with what has arrived."""
    job = FaultJob(
        tmp_path,
        NODES[:3],
        faults=[kill("east", 6)],
        settings=RESTARTS,
        epochs=4 * EPOCHS,
        num_workers=3,
        patient_from=8,
        patient_seconds=0.3,
        move_blocks=1,
        **SCRIPT | {"ballast": 40_000},
    )
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=4 * EPOCHS, workers=[f"{node}:0" for node in sorted(NODES[:3])])
    told = re.findall(r"state (are to move|have moved)", job.console)
    assert told[:2] == ["are to move", "are to move"], job.console
    assert told[-1] == "have moved"


@pytest.mark.matrix
def test_several_that_are_asked_to_leave_at_once_hand_over_what_they_have(tmp_path):
    """Three of four, of whom some two have a part alone: nothing is taken back."""
    faults = [kill(node, 12) | {"kind": "terminate"} for node in NODES[:3]]
    job = FaultJob(tmp_path, NODES, faults=faults, settings=ENDS, epochs=EPOCHS, **SCRIPT)
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=EPOCHS, workers=["west:0"])
    assert "of the optimizer's state move before 3 workers leave" in job.console


@pytest.mark.matrix
@pytest.mark.parametrize("place", ["loss", "after"])
def test_two_are_asked_to_leave_in_the_step_in_which_the_third_is_killed(tmp_path, place):
    """Each of the three may have had a part with one of the others alone."""
    faults = [kill(node, 12) | {"place": place} for node in NODES[:3]]
    faults[1]["kind"] = faults[2]["kind"] = "terminate"
    job = FaultJob(tmp_path, NODES, faults=faults, settings=ENDS, epochs=EPOCHS, **SCRIPT)
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=EPOCHS, workers=["west:0"])


@pytest.mark.matrix
@pytest.mark.parametrize("delay_seconds", [0.0, 0.01, 0.03, 0.1, 0.3])
def test_who_is_asked_to_leave_while_the_others_meet_hands_over_first(tmp_path, delay_seconds):
    """Another one is killed before, and a third one in the rendezvous, so that it breaks.

    What only these two had comes from the checkpoint; nobody takes anything else along.
    """
    faults = [kill(NODES[0], STEPS)]
    for node, kind, seconds in (("east", "terminate", 0.0), ("south", "kill", 0.02)):
        late = {"after_fault": 0, "delay_seconds": delay_seconds + seconds}
        faults.append({"worker": f"{node}:0", "kind": kind, **late})
    job = FaultJob(
        tmp_path, NODES, faults=faults, settings=ENDS | KEPT, epochs=4 * EPOCHS, **SCRIPT
    )
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=4 * EPOCHS, workers=["west:0"])


WRITTEN = {
    "a part of rank 0": ("north", "part-00000.pt"),
    "a part of another": ("east", "part-00001.pt"),
    "a part, while another is written": ("east", "part-00002.pt"),
    "all but the parts": ("north", "state.pt"),
    "the manifest": ("north", ".manifest.json.*"),
    "nothing yet": ("east", ""),
}


@pytest.mark.matrix
@pytest.mark.parametrize(("node", "file"), WRITTEN.values(), ids=WRITTEN)
def test_whoever_is_killed_while_a_checkpoint_is_written_the_one_before_counts(
    tmp_path, node, file
):
    """No half of it is left, and the last one is what one process reads."""
    pattern = f"out/checkpoints/.*step-*{'/' * bool(file)}{file}"
    fault = {"worker": f"{node}:0", "kind": "kill", "once_there": pattern}
    job = FaultJob(
        tmp_path,
        NODES,
        faults=[fault],
        settings=ENDS | {"checkpoint_seconds": 0.3},
        epochs=4 * EPOCHS,
        **SCRIPT | {"ballast": 400_000},
    )
    assert job.wait(200) == 0, job.console
    left = [f"{each}:0" for each in sorted(NODES) if each != node]
    assert_exact(job, epochs=4 * EPOCHS, workers=left)
    newest = max((tmp_path / "out" / "checkpoints").glob("step-*"))
    assert len(list(newest.glob("part-*.pt"))) == 3
    state = read_checkpoint(str(newest))
    assert state["position"]["applied_steps"] == 4 * STEPS


@pytest.mark.matrix
def test_several_nodes_that_are_taken_out_at_once_hand_over_what_they_have(tmp_path):
    """By the driver, which makes a membership without them."""
    job = FaultJob(
        tmp_path,
        NODES,
        settings=ENDS,
        epochs=4 * EPOCHS,
        patient_from=12,
        patient_until="gone",
        patient_seconds=0.1,
        **SCRIPT,
    )
    job.wait_for_step(13)
    write_nodes(job.nodes_file, NODES[3:], **ENDS)
    job.wait_for("1 workers train together: west:0")
    (tmp_path / "gone").touch()
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=4 * EPOCHS, workers=["west:0"])
    assert "of the optimizer's state move before 3 workers leave" in job.console


@pytest.mark.matrix
def test_all_holders_lost_at_once_go_back_to_the_newest_checkpoint(tmp_path):
    """Three of four: it is said, and all is exact."""
    job = FaultJob(
        tmp_path,
        NODES,
        faults=[kill(node, STEPS) for node in NODES[:3]],
        settings=ENDS | KEPT,
        epochs=4 * EPOCHS,
        **SCRIPT,
    )
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=4 * EPOCHS, workers=["west:0"])
    assert "of the optimizer's state are lost: all go back to the newest checkpoint" in job.console
