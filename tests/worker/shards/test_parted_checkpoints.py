"""Each holder writes its part of a checkpoint; whoever is lost meanwhile, the one before counts."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from msgspec.structs import replace
from rendezvous import Hub, run_together

from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints.folder_store import FolderStore
from hetero_hvd.worker.recovery.checkpoints.parted import PartedCheckpoints
from hetero_hvd.worker.recovery.checkpoints.reading import read_checkpoint
from hetero_hvd.worker.recovery.checkpoints.series import open_checkpoints
from hetero_hvd.worker.shards.wishes import Wishes

from .test_lost_holders import EPOCHS, STEPS, Script, check

WANTED = 3
LAST = EPOCHS * STEPS
ROOMS = (24, 24, 24, 24)


@pytest.fixture(scope="module")
def undisturbed():
    """The same with the whole state on each worker, and what it would keep at the end."""
    return run_together(Hub(1), lambda c: Script(c, shards=False).keep_at(LAST).run())[0]


def script_with_checkpoints(context, folder, *, wanted=WANTED, shards=True, sees=True):
    """A script that keeps its state after a step, and at its end."""
    script = Script(context, shards=shards, rooms=ROOMS)
    state = script.trainer._state
    kept = state._kept
    settings = CheckpointSettings(folder=str(folder), run="one", every_seconds=0, keep=9)
    kept._checkpoints = open_checkpoints(settings, state.replica, 1, lambda _: None)
    if shards:
        kept._parted = PartedCheckpoints(kept._checkpoints, script.shards)
        if not sees:
            kept._parted._sees = lambda _: False
        script.shards.wishes.wants_one = lambda: (
            context.collective.rank == 0 and script.trainer.applied_steps == wanted - 1
        )
    return script


def steps_in(folder):
    """Of the complete checkpoints, which are all that there is."""
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    return sorted(manifest.applied_steps for _, manifest in FolderStore(str(folder)).listed())


def check_last(folder, undisturbed, num_parts):
    """The newest one is what the optimizer itself would have kept."""
    name, manifest = max(FolderStore(str(folder)).listed())
    assert manifest.applied_steps == LAST
    assert len(manifest.parts) == num_parts
    found = read_checkpoint(str(folder / name))["optimizer"]
    wanted = undisturbed.snapshot["optimizer"]
    assert found["param_groups"] == wanted["param_groups"]
    assert found["state"].keys() == wanted["state"].keys()
    for number, state in wanted["state"].items():
        assert found["state"][number].keys() == state.keys()
        for key, value in state.items():
            torch.testing.assert_close(found["state"][number][key], value)
    plain = torch.optim.AdamW(undisturbed.model.parameters())
    plain.load_state_dict(found)


def test_wishes_are_those_of_all_workers():
    """One that wants a checkpoint is enough; who has written is counted, who leaves is named."""
    wishes = [Wishes() for _ in range(3)]
    wishes[0].wants_one = wishes[0].has_written = wishes[2].has_written = lambda: True
    wishes[2].wants_to_leave = lambda: True
    wishes[1].hear([each.own for each in wishes])
    assert (wishes[1].is_wanted, wishes[1].num_written) == (True, 2)
    assert wishes[1].leaving == {2}


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_each_holder_writes_its_part_and_any_number_goes_on(tmp_path, undisturbed, num_workers):
    """In parts, or with the whole state on each."""

    def run(context):
        return script_with_checkpoints(context, tmp_path).run()

    check(run_together(Hub(num_workers), run), undisturbed, copies=min(2, num_workers))
    assert steps_in(tmp_path) == [WANTED, LAST]
    check_last(tmp_path, undisturbed, num_workers)
    FolderStore(str(tmp_path)).remove(max(FolderStore(str(tmp_path)).listed())[0])
    for number, shards in ((3, True), (2, False)):

        def go_on(context, shards=shards):
            script = script_with_checkpoints(context, tmp_path, wanted=0, shards=shards)
            script.run()
            return script

        scripts = run_together(Hub(number), go_on)
        assert all(torch.equal(each.values, scripts[0].values) for each in scripts)
        assert scripts[0].values == pytest.approx(undisturbed.values, abs=1e-6)
        FolderStore(str(tmp_path)).remove(max(FolderStore(str(tmp_path)).listed())[0])


PLACES = ("shards.place", "unsent"), ("shards.seen", "sent"), ("shards.written", "unsent")
LOSSES = [(victim, operation, 1, when) for victim in (0, 1) for operation, when in PLACES]


@pytest.mark.parametrize("fault", LOSSES, ids=lambda fault: "-".join(map(str, fault)))
def test_a_holder_that_is_lost_while_a_checkpoint_is_made_costs_that_one(
    tmp_path, undisturbed, fault, caplog
):
    """Training goes on, and the next one is whole."""
    operation = fault[1]
    hub = Hub(3, [fault])
    scripts = run_together(hub, lambda c: script_with_checkpoints(c, tmp_path).run())
    assert hub.fired == hub.faults
    assert len(scripts) == 2
    _join_writers()
    if fault[0]:  # what a killed rank 0 has begun is cleared away once its process is gone
        assert not list(tmp_path.glob(".*"))
    check_last(tmp_path, undisturbed, 2)
    found = [manifest.applied_steps for _, manifest in FolderStore(str(tmp_path)).listed()]
    assert WANTED not in found or operation != "shards.written"
    if operation == "shards.written":
        assert f"the checkpoint of step {WANTED} is given up" in caplog.text


def _join_writers():
    for thread in threading.enumerate():
        if thread.name == "part":
            thread.join()


def test_a_holder_that_dies_in_the_midst_of_its_file_leaves_no_checkpoint(
    tmp_path, undisturbed, monkeypatch, caplog
):
    """Its part never comes: the others go on, and give that checkpoint up."""
    ended, put_part = threading.Event(), FolderStore.put_part

    def half(self, place, part, write):
        if part == "part-00001.pt" and not ended.is_set():
            (self._folder / place / part).write_bytes(b"half")
            ended.wait(20)
            raise OSError("its process is gone")
        return put_part(self, place, part, write)

    monkeypatch.setattr(FolderStore, "put_part", half)
    hub = Hub(3, [(1, "totals.0", WANTED + 2, "unsent")])

    def run(context):
        try:
            return script_with_checkpoints(context, tmp_path).run()
        finally:
            if context.settings.worker.slot == 1:
                ended.set()

    scripts = run_together(hub, run)
    assert hub.fired == hub.faults
    _join_writers()
    assert steps_in(tmp_path) == [LAST]
    assert f"the checkpoint of step {WANTED} is given up, as the workers have" in caplog.text
    assert len(scripts) == 2
    check_last(tmp_path, undisturbed, 2)


def test_a_part_that_cannot_be_written_costs_its_checkpoint(
    tmp_path, undisturbed, monkeypatch, caplog
):
    """It is said why, and the next one is whole."""
    put_part, failed = FolderStore.put_part, []

    def refused(self, place, part, write):
        if part == "part-00002.pt" and not failed:
            failed.append(place)
            raise OSError(28, "No space left on device")
        return put_part(self, place, part, write)

    monkeypatch.setattr(FolderStore, "put_part", refused)
    run_together(Hub(3), lambda c: script_with_checkpoints(c, tmp_path).run())
    assert failed
    assert steps_in(tmp_path) == [LAST]
    assert (
        f"the checkpoint of step {WANTED} cannot be written: a part of it is not: " in caplog.text
    )
    assert "No space left on device" in caplog.text
    check_last(tmp_path, undisturbed, 3)


def test_where_nothing_can_be_begun_it_is_tried_again_when_the_next_one_is_due(tmp_path):
    """As the message says; and at the end."""
    (tmp_path / "file").touch()
    told = []

    def run(context):
        script = script_with_checkpoints(context, tmp_path / "file" / "folder")
        kept = script.trainer._state._kept
        kept._checkpoints._not_kept._every_seconds = 3600
        kept._checkpoints._not_kept._tell = told.append
        kept._checkpoints._settings = replace(kept._checkpoints._settings, every_seconds=3600)
        kept._checkpoints._next_at_seconds = 0
        script.shards.wishes.wants_one = lambda: kept.is_due
        return script.run()

    run_together(Hub(3), run)
    assert [type(each).__name__ for each in told] == ["CheckpointFailed"] * 2
    assert [each.step for each in told] == [1, LAST]


def test_a_script_that_leaves_its_loop_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    """Of which a part is being written still."""
    left, put_part = threading.Barrier(3), FolderStore.put_part

    def slow(self, place, part, write):
        if part == "part-00001.pt":
            left.wait(20)
        return put_part(self, place, part, write)

    monkeypatch.setattr(FolderStore, "put_part", slow)

    def run(context):
        script = script_with_checkpoints(context, tmp_path)
        for _ in script.trainer.epochs(EPOCHS):
            for (x,) in script.trainer.batches():
                script.trainer.step(script.loss, x)
            break
        if context.settings.worker.slot != 2:
            left.wait(20)

    run_together(Hub(3), run)
    _join_writers()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_shared_folder", [True, False])
def test_where_the_folder_is_not_shared_rank_0_collects(
    tmp_path, undisturbed, caplog, has_shared_folder
):
    """Which of both it is is found out, and said once."""
    caplog.set_level(logging.INFO)

    def run(context):
        sees = has_shared_folder or context.settings.worker.slot == 0
        return script_with_checkpoints(context, tmp_path, sees=sees).run()

    run_together(Hub(3), run)
    assert steps_in(tmp_path) == [WANTED, LAST]
    check_last(tmp_path, undisturbed, 3 if has_shared_folder else 0)
    alone = caplog.text.count("2 of 3 workers do not find in the place of the checkpoints what")
    together = caplog.text.count("shard_optimizer: each worker writes its part of the checkpoints")
    assert (alone, together) == ((0, 1) if has_shared_folder else (1, 0))
