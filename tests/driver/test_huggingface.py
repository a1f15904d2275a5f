"""Hugging Face's Trainer: the same script with us and without, whatever happens to the workers."""

from pathlib import Path

import pytest

from hetero_hvd.messages import BatchPlan
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

pytest.importorskip("transformers")
pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("huggingface.py")
TOKENS = {
    "model": "gpt2",
    "arguments": {
        "output_dir": "gpt2",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 30,
        "learning_rate": 5e-3,
        "eval_strategy": "steps",
        "eval_steps": 6,
        "save_strategy": "steps",
        "save_steps": 6,
        "load_best_model_at_end": True,
    },
}
SAMPLES = {
    "model": "bert",
    "patience": 1,
    "arguments": {
        "output_dir": "bert",
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_strategy": "best",
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
    },
}
ADAPTER = {
    "model": "lora",
    "arguments": {
        "output_dir": "lora",
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "learning_rate": 1e-2,
    },
}
MIXED_PRECISION = {
    "model": "gpt2",
    "rel": 1e-3,
    "arguments": {
        "output_dir": "bf16",
        "per_device_train_batch_size": 6,
        "max_steps": 4,
        "bf16": True,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": "tensorboard",
    },
}
IN_PARTS = TOKENS | {
    "ours": {"shard_optimizer": True},
    "arguments": TOKENS["arguments"] | {"output_dir": "parts", "save_only_model": True},
}
"""What plain transformers finds of it is what it finds of `TOKENS`."""

TRAININGS = [TOKENS, SAMPLES, ADAPTER, MIXED_PRECISION]
TIMES = ("runtime", "per_second", "flos", "preparation_time")
"""What a log tells that is another number each time."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder in which transformers by itself has trained, and what it has found."""
    folder = tmp_path_factory.mktemp("plain")
    return folder, run_alone(SCRIPT, folder, trainings=TRAININGS, is_plain=True)


@pytest.fixture(scope="module")
def together(plain, tmp_path_factory):
    """The folder in which two unequal workers have trained the same, and what each has found.

    None sees what the other one writes. One more training goes on from a checkpoint of `plain`.
    """
    folder = tmp_path_factory.mktemp("together")
    again = TOKENS | {"resume": str(plain[0] / "gpt2" / "checkpoint-6")}
    names = ("alpha", "beta")
    results, _ = run_job(SCRIPT, folder, names, *TRAININGS, again, has_own_folders=True)
    return folder, results


def losses(result):
    """Loss, norm of the gradient and learning rate of each step."""
    names = ("loss", "grad_norm", "learning_rate", "epoch", "num_input_tokens_seen")
    return {each["step"]: [each[n] for n in names] for each in result["log"] if "loss" in each}


def evaluations(result):
    """What each evaluation has found, but for how long it took."""
    return [
        {name: value for name, value in each.items() if not any(t in name for t in TIMES)}
        for each in [*result["log"], result["evaluation"]]
        if "eval_loss" in each
    ]


def check_equal(found, expected, *, from_step=0, rel=1e-6):
    """Both trained the same; `rel` is for the first 20 steps."""
    mine = {step: values for step, values in losses(found).items() if step > from_step}
    theirs = {step: values for step, values in losses(expected).items() if step > from_step}
    assert mine.keys() == theirs.keys()
    for step, values in mine.items():
        assert values == pytest.approx(theirs[step], rel=rel if step <= 20 else 1e-5), step
    later = [each for each in evaluations(expected) if each.get("step", 99) > from_step]
    assert len(later) > 1
    for mine, theirs in zip(evaluations(found)[-len(later) :], later, strict=True):
        assert mine == pytest.approx(theirs, rel=10 * rel)
    for name in ("steps", "best", "predictions"):
        assert found[name] == expected[name], name
    assert found["weights"] == pytest.approx(expected["weights"], rel=100 * rel, abs=1e-6)


def test_a_process_alone_is_as_without_us(plain, tmp_path):
    """Losses over tokens and samples, an adapter, evaluations, an early end, the best model."""
    folder, expected = plain
    found = run_alone(SCRIPT, tmp_path, trainings=TRAININGS)
    for mine, theirs, training in zip(found, expected, TRAININGS, strict=True):
        check_equal(mine, theirs, rel=training.get("rel", 1e-6))
    assert expected[1]["steps"] < 35, "nothing ended early"
    assert {each.name for each in tmp_path.glob("*/checkpoint-*")} == {
        each.name for each in folder.glob("*/checkpoint-*")
    }


@pytest.mark.matrix
def test_unequal_workers_train_the_same(plain, together, tmp_path):
    """Two, with what is logged in the record; one goes on from a checkpoint of the other."""
    folder, expected = plain
    own, results = together
    record = record_of(own)
    assert (5, 3) in {plan.local_batch_sizes for plan in events_of(record, BatchPlan)}
    assert results.keys() == {"result-alpha-0", "result-beta-0"}
    for result in results.values():
        for mine, theirs, training in zip(result[:-1], expected, TRAININGS, strict=True):
            check_equal(mine, theirs, rel=training.get("rel", 1e-6))
        check_equal(result[-1], expected[0], from_step=6)
        assert len({each["own_samples"] for each in result[0]["log"] if "own_samples" in each}) > 1
    mine = list(own.glob("*/bf16/runs/*/events*"))
    theirs = list(folder.glob("bf16/runs/*/events*"))
    assert len(mine) == len(theirs) > 0, "not the leader alone has reported"
    assert [result[0]["is_leader"] for result in results.values()].count(True) == 1
    logged = {name for _, event in record.logged for name in event.values}
    assert {"loss", "grad_norm", "learning_rate", "own_samples", "eval_accuracy"} <= logged
    (checkpoint,) = own.glob("*/gpt2/checkpoint-12")
    mine = TOKENS | {"resume": str(checkpoint)}
    (back,) = run_alone(SCRIPT, tmp_path, trainings=[mine], is_plain=True)
    check_equal(back, expected[0], from_step=12)


def test_all_end_with_the_best_model(together):
    """It is not the last one; whoever does not see the leader's folder is told of it."""
    folder, results = together
    leader, other = sorted(
        (each[TRAININGS.index(SAMPLES)] for each in results.values()),
        key=lambda each: not each["is_leader"],
    )
    assert other["weights"] == leader["weights"]
    assert int(leader["best"].removeprefix("checkpoint-")) < leader["steps"]
    assert len(list(folder.glob("*/bert/checkpoint-*"))) > 0
    assert len(list(folder.glob("*/bert"))) == 1


def test_workers_are_lost_and_come_back(plain, tmp_path):
    """One in a step, the leader while it writes a checkpoint: no sample is lost, nor is that.

    They come back into the same training, and a new node comes with them. In the next one somebody
    has no part of any step, not even of the last one, at which all end. In the last one the
    optimizer's state lies in parts.
    """
    _, expected = plain
    faults = {"gamma:0": "loss 7", "alpha:0": "save 12"}
    names, trainings = (*THREE, "delta"), (TOKENS, SAMPLES, IN_PARTS)
    results, _ = run_job(
        SCRIPT, tmp_path, THREE, *trainings, faults=faults, joining=("delta",), join_step=14
    )
    record = record_of(tmp_path)
    check_elastic(record, len(names))
    plans = events_of(record, BatchPlan)
    assert [0, 0, 1, 1] in [sorted(plan.local_batch_sizes) for plan in plans]
    assert results.keys() == {f"result-{name}-0" for name in names}
    for name, result in results.items():
        check_equal(result[0], expected[0], from_step=0 if name == "result-beta-0" else 24)
        check_equal(result[1], expected[1])
        check_equal(result[2], expected[0])
    check_in_parts(record, len(names))
    for step in (6, 12, 18, 24, 30):
        assert (tmp_path / "gpt2" / f"checkpoint-{step}" / "trainer_state.json").exists()
        assert (tmp_path / "parts" / f"checkpoint-{step}" / "model.safetensors").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("fault", IN_PARTS_FAULTS.values(), ids=IN_PARTS_FAULTS.keys())
def test_parts_go_on_with_who_remains(plain, tmp_path, fault):
    """Wherever a worker with parts of the state is lost, the leader too."""
    for result in survive(SCRIPT, tmp_path, IN_PARTS, fault):
        check_equal(result, plain[1][0])
    check_in_parts(record_of(tmp_path), len(THREE))


@pytest.mark.matrix
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_whoever_meets_no_fault_trains_the_same(plain, tmp_path, fault):
    """Wherever a worker is lost; what no restart mends ends the job, and says what it was."""
    for result in survive(SCRIPT, tmp_path, TOKENS, fault):
        check_equal(result, plain[1][0])
