"""Lightning: the same script with our strategy and without, whatever happens to the workers."""

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

from hetero_hvd.messages import BatchPlan, Recovered
from tests.driver.trainer_job import (
    FAULTS,
    IN_PARTS_FAULTS,
    THREE,
    check_elastic,
    check_in_parts,
    events_of,
    record_of,
    run_alone,
    run_job,
    survive,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed"),
]

SCRIPT = Path(__file__).with_name("lightning_training.py")
BY_STEPS = {
    "name": "steps",
    "batch_size": 4,
    "every": 6,
    "arguments": {
        "max_steps": 30,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.8,
        "val_check_interval": 6,
    },
}
BY_EPOCHS = {
    "name": "epochs",
    "batch_size": 2,
    "scheduling": "plateau",
    "patience": 2,
    "arguments": {
        "max_epochs": 20,
        "limit_train_batches": 6,
        "limit_val_batches": 4,
        "num_sanity_val_steps": 0,
    },
}
MIXED_PRECISION = {
    "name": "bf16",
    "batch_size": 8,
    "scheduling": "epoch",
    "rel": 1e-2,
    "arguments": {"max_epochs": 2, "precision": "bf16-mixed", "limit_train_batches": 4},
}
ONE_HELD_BATCH = {
    "name": "one-held-batch",
    "batch_size": 4,
    "arguments": {"max_epochs": 2, "limit_train_batches": 3, "limit_val_batches": 1},
}
"""All workers but one have no part of a validation."""

IN_PARTS = BY_STEPS | {"name": "parts", "ours": {"shard_optimizer": True}}
"""What plain Lightning finds of it is what it finds of `BY_STEPS`."""

TRAININGS = [BY_STEPS, BY_EPOCHS, MIXED_PRECISION, ONE_HELD_BATCH]


def plainly(training, name):
    """The same without us, in another folder."""
    return training | {"is_plain": True, "name": name}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder in which one process has trained, and what it has found: without us, with us."""
    folder = tmp_path_factory.mktemp("alone")
    plain = [plainly(training, f"plain-{training['name']}") for training in TRAININGS]
    found = run_alone(SCRIPT, folder, trainings=[*plain, *TRAININGS])
    return folder, found[: len(plain)], found[len(plain) :]


def check_equal(found, expected, *, from_step=0, rel=1e-6):
    """Both trained the same; `rel` is for the first 20 steps."""
    for what in ("steps", "validations"):
        mine = {step: each for step, each in found[what].items() if int(step) > from_step}
        theirs = {step: each for step, each in expected[what].items() if int(step) > from_step}
        assert mine.keys() == theirs.keys()
        for step, values in mine.items():
            near = rel if int(step) <= 20 else 10 * rel
            assert values == pytest.approx(theirs[step], rel=near, abs=near), (what, step)
    for mine, theirs in zip(found["test"], expected["test"], strict=True):
        assert mine == pytest.approx(theirs, rel=10 * rel)
    assert found["predicted"] == pytest.approx(expected["predicted"], rel=10 * rel, abs=10 * rel)
    for name in ("global_step", "epoch", "best"):
        assert found[name] == expected[name], name
    for name in ("train_loss_epoch", "val_loss", "train_error", "own_error_epoch"):
        wanted = expected["logged"].get(name)
        if name in found["logged"]:
            assert found["logged"][name] == pytest.approx(wanted, rel=10 * rel), name


def test_a_process_alone_is_as_without_us(alone):
    """Accumulation, clipping, schedules, validation, an early end, checkpoints, bf16."""
    folder, expected, found = alone
    for mine, theirs, training in zip(found, expected, TRAININGS, strict=True):
        check_equal(mine, theirs, rel=training.get("rel", 1e-6))
        ours = {each.name for each in (folder / training["name"]).glob("*.ckpt")}
        assert ours == {each.name for each in (folder / f"plain-{training['name']}").glob("*.ckpt")}
    assert expected[1]["epoch"] < 20, "nothing ended early"


@pytest.mark.matrix
def test_unequal_workers_train_the_same(alone, tmp_path):
    """Two, with what is logged in the record; one goes on from a checkpoint of the other."""
    folder, expected, _ = alone
    again = BY_STEPS | {"name": "again", "resume": str(folder / "plain-steps" / "step=18.ckpt")}
    results, _ = run_job(SCRIPT, tmp_path, ("alpha", "beta"), *TRAININGS, again)
    record = record_of(tmp_path)
    assert (5, 3) in {plan.local_batch_sizes for plan in events_of(record, BatchPlan)}
    assert results.keys() == {"result-alpha-0", "result-beta-0"}
    for result in results.values():
        for mine, theirs, training in zip(result[:-1], expected, TRAININGS, strict=True):
            check_equal(mine, theirs, rel=training.get("rel", 1e-6))
        check_equal(result[-1], expected[0], from_step=18)
    assert [result[0]["is_leader"] for result in results.values()].count(True) == 1
    (file,) = tmp_path.glob("logs/epochs/*/metrics.csv")
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert {"train_loss_step", "train_loss_epoch", "val_error"} <= rows[0].keys()
    logged = {name for _, event in record.logged for name in event.values}
    assert {"loss", "learning_rate", "own_samples", "train_loss_step", "val_error"} <= logged
    mine = plainly(BY_STEPS, "back") | {"resume": str(tmp_path / "steps" / "step=18.ckpt")}
    (back,) = run_alone(SCRIPT, tmp_path, trainings=[mine])
    check_equal(back, expected[0], from_step=18)


def test_workers_are_lost_and_come_back(alone, tmp_path):
    """One in a step, the leader while it writes a checkpoint: no sample is lost, nor is that.

    They come back into the same training, and a new node comes with them. In the next one somebody
    has no part of any step, not even of the last one, at which all end. In the last one the
    optimizer's state lies in parts.
    """
    _, expected, _ = alone
    faults = {"gamma:0": "loss 7", "alpha:0": "save 12"}
    names, trainings = (*THREE, "delta"), (BY_STEPS, BY_EPOCHS, IN_PARTS)
    results, _ = run_job(
        SCRIPT, tmp_path, THREE, *trainings, faults=faults, joining=("delta",), join_step=14
    )
    record = record_of(tmp_path)
    check_elastic(record, len(names))
    assert results.keys() == {f"result-{name}-0" for name in names}
    for name, result in results.items():
        check_equal(result[0], expected[0], from_step=0 if name == "result-beta-0" else 24)
        check_equal(result[1], expected[1])
        check_equal(result[2], expected[0])
    check_in_parts(record, len(names))
    for step in (6, 12, 18, 24, 30):
        assert (tmp_path / "steps" / f"step={step}.ckpt").exists()
        assert (tmp_path / "parts" / f"step={step}.ckpt").exists()


@pytest.mark.parametrize(
    "ours", [pytest.param({}, marks=pytest.mark.matrix), {"shard_optimizer": True}], ids=str
)
def test_who_remains_hears_the_same(tmp_path, ours):
    """One is lost in the midst of its last step's hooks, between two things that all tell there.

    What metric objects have seen is told after that, at the end of the epoch.
    """
    faults = {"beta:0": "told 12 1"}
    arguments = BY_EPOCHS["arguments"] | {"max_epochs": 2}
    training = BY_EPOCHS | {"arguments": arguments, "ours": ours}
    settings = {"max_restarts": 0}
    results, _ = run_job(SCRIPT, tmp_path, THREE, training, settings=settings, faults=faults)
    one, other = (results[f"result-{name}-0"][0] for name in ("alpha", "gamma"))
    assert (tmp_path / "fired-beta:0").exists()
    assert "fault" in {event.cause for event in events_of(record_of(tmp_path), Recovered)}
    assert one["train_errors"] == other["train_errors"]
    assert len(one["train_errors"]) == 2
    assert one["told"] == other["told"]
    assert one["told"]["11"] == [2.0, 2.0]
    assert one["told"]["12"] == [2.0, 1.0], "beta's sample is told once"
    check_equal(one, other)


@pytest.mark.matrix
@pytest.mark.parametrize("fault", IN_PARTS_FAULTS.values(), ids=IN_PARTS_FAULTS.keys())
def test_parts_go_on_with_who_remains(alone, tmp_path, fault):
    """Wherever a worker with parts of the state is lost, the leader too."""
    for result in survive(SCRIPT, tmp_path, IN_PARTS, fault):
        check_equal(result, alone[1][0])
    check_in_parts(record_of(tmp_path), len(THREE))


@pytest.mark.matrix
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_whoever_meets_no_fault_trains_the_same(alone, tmp_path, fault):
    """Wherever a worker is lost; what no restart mends ends the job, and says what it was."""
    for result in survive(SCRIPT, tmp_path, BY_STEPS, fault):
        check_equal(result, alone[1][0])
