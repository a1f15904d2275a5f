"""What a thread waits in is read from its stack, and all who wait for each other say the same."""

import importlib.util
import threading
import time
from pathlib import Path

import pytest

from hetero_hvd.refusal import PACKAGE
from hetero_hvd.worker.session import whereabouts
from hetero_hvd.worker.session.whereabouts import OPERATIONS, waits_in

DOOR = "comm/horovod.py HorovodCollective.wait"
COPY = (
    DOOR,
    "recovery/transfer.py copy_state",
    "recovery/membership.py meet",
    "recovery/elastic_state.py ElasticState._meet",
)
COMPARE = (
    DOOR,
    "comm/payloads.py gather_bytes",
    "recovery/replica_check.py heal",
    "recovery/agreement.py Agreement.compare",
)
ENTER, RECOVER = (
    "recovery/elastic_state.py ElasticState.enter",
    "recovery/elastic_state.py ElasticState.recover",
)
EPOCHS, BATCHES = "training_loop.py TrainingLoop._epochs", "trainer.py Trainer.batches"
DRAIN = (DOOR, "step/pipeline.py Pipeline.drain")

STACKS = {
    "survivors take a joiner in, called by the exchange": (
        (
            *COPY,
            RECOVER,
            "recovery/elastic_state.py ElasticState._act_on",
            "recovery/elastic_state.py ElasticState.step_taken",
            "trainer.py Trainer.apply",
        ),
        "a new rendezvous",
    ),
    "survivors take a joiner in, called by an evaluation": (
        (*COPY, RECOVER, "evaluation.py Evaluations._together"),
        "a new rendezvous",
    ),
    "the joiner": ((*COPY, ENTER, EPOCHS), "a new rendezvous"),
    "a survivor at the end": (
        (*COPY, RECOVER, "recovery/elastic_state.py ElasticState.finish", EPOCHS),
        "a new rendezvous",
    ),
    "a comparison in mid-epoch": (
        (*COMPARE, "recovery/elastic_state.py ElasticState.step_taken"),
        "trainer.step()",
    ),
    "the last comparison": (
        (*COMPARE, "recovery/elastic_state.py ElasticState.finish"),
        "the end of trainer.epochs()",
    ),
    "the last step under way": (
        (*DRAIN, "training_loop.py TrainingLoop._drain", BATCHES),
        "trainer.step()",
    ),
    "layers that meet the others in a step": (
        (
            DOOR,
            "model/sync_batch_norm_rounds.py SyncRounds.finish",
            "synchronous/synchronous_step.py SynchronousStep.submit",
            "step/pipeline.py Pipeline.take",
        ),
        "trainer.step()",
    ),
    "it computes": (
        ("synchronous/synchronous_step.py SynchronousStep.backward", "trainer.py Trainer.step"),
        "",
    ),
}


def is_defined(name, source):
    """Whether there are such a class and function in a module."""
    owner, _, function = name.rpartition(".")
    return f"def {function}(" in source and (not owner or f"class {owner}" in source)


def stacked(calls, innermost):
    """A function that calls functions of the package, by file and name, around `innermost`."""
    call = innermost
    for file_and_name in calls:
        file, name = file_and_name.split()
        path = Path(PACKAGE, "worker", file)
        owner, _, function = name.rpartition(".")
        assert is_defined(name, path.read_text()), f"{file} has no {name}"
        code = f"class {owner}:\n  def {function}(): call()" if owner else f"def {name}(): call()"
        space = {"call": call}
        exec(compile(code, path, "exec"), space)  # noqa: S102
        call = getattr(space[owner], function) if owner else space[name]
    return call


@pytest.mark.parametrize("name", STACKS)
def test_all_who_wait_for_each_other_are_in_the_same_operation(name):
    """Whatever led there; the place is the script's line, outside the package."""
    calls, expected = STACKS[name]
    is_there, may_go = threading.Event(), threading.Event()

    # What blocks is in the library, as the script's own frames would end the search.
    block = stacked(calls, may_go.wait)
    thread = threading.Thread(target=lambda: (is_there.set(), block()), daemon=True)
    thread.start()
    try:
        assert is_there.wait(10)
        operation, place = _settled(thread)
        assert operation == expected
        assert place.startswith(Path(__file__).name) == bool(expected)
    finally:
        may_go.set()
        thread.join()


class Odd:
    """What a changing stack may hand out: no frame, or a link to something that is none."""

    f_code = (lambda: None).__code__
    f_back = None


@pytest.mark.parametrize("found", [None, Odd(), object()])
def test_what_is_no_frame_is_nowhere(monkeypatch, found):
    """The heart goes on beating."""
    monkeypatch.setattr(whereabouts.sys, "_current_frames", lambda: {7: found})
    assert waits_in(7) == ("", "")


def test_a_stack_that_changes_all_the_time_can_be_read():
    """By a thread that asks again and again, while another one imports and calls."""
    may_go = threading.Event()

    def busy(depth=0):
        while not may_go.is_set():
            importlib.util.find_spec("colorsys")
            if depth < 30:
                busy(depth + 1)

    thread = threading.Thread(target=busy, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert waits_in(thread.ident) == ("", "")
    finally:
        may_go.set()
        thread.join()


def _settled(thread):
    """What it waits in, as soon as it waits; after a while, if it never does."""
    for _ in range(50):
        found = waits_in(thread.ident)
        if found != ("", ""):
            return found
        thread.join(0.01)
    return found


def test_each_operation_is_a_function_of_the_package():
    """A function that is renamed is renamed in the table as well."""
    sources = [path.read_text() for path in Path(PACKAGE, "worker").rglob("*.py")]
    for name in OPERATIONS:
        assert any(is_defined(name, source) for source in sources), name
