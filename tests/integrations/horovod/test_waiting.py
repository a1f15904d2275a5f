"""What a script of Horovod's waits in is read from the stack of its thread."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_hvd.integrations.horovod.waiting import Waiting
from hetero_hvd.worker.session import whereabouts
from hetero_hvd.worker.session.whereabouts import DOOR

HOROVOD = Path("/site/horovod")
SYNCHRONIZE = (HOROVOD / "torch" / "mpi_ops.py", "synchronize")
STEP = (HOROVOD / "torch" / "optimizer.py", "_DistributedOptimizer.synchronize")
COMMIT = (HOROVOD / "common" / "elastic.py", "State.commit")

STACKS = {
    "an operation": ((SYNCHRONIZE, (SYNCHRONIZE[0], "allreduce")), "hvd.allreduce()"),
    "an update": ((SYNCHRONIZE, STEP), "optimizer.step()"),
    "a commit": ((SYNCHRONIZE, (SYNCHRONIZE[0], "broadcast"), COMMIT), "state.commit()"),
    "our exchange": (((DOOR, "wait"),), "optimizer.step()"),
    "it computes": (((SYNCHRONIZE[0], "allreduce_async"),), ""),
}


@pytest.fixture
def waiting():
    """Of a Horovod that is nowhere."""
    return Waiting(SimpleNamespace(__file__=str(HOROVOD / "torch" / "__init__.py")))


def stacked(calls, innermost):
    """A function that calls functions of those files and names around `innermost`."""
    call = innermost
    for path, name in calls:
        owner, _, function = name.rpartition(".")
        code = f"class {owner}:\n  def {function}(): call()" if owner else f"def {name}(): call()"
        space = {"call": call}
        exec(compile(code, path, "exec"), space)  # noqa: S102
        call = getattr(space[owner], function) if owner else space[name]
    return call


@pytest.mark.parametrize(("calls", "expected"), STACKS.values(), ids=STACKS)
def test_what_the_script_called_is_named_with_its_place(waiting, calls, expected):
    """Also if it called that from far within itself."""
    is_in, may_go = threading.Event(), threading.Event()

    # What blocks is in the library, as the script's own frames would end the search.
    block = stacked(calls, may_go.wait)

    def script(depth):
        if depth:
            script(depth - 1)
        else:
            is_in.set()
            block()

    thread = threading.Thread(target=script, args=(30,), daemon=True)
    thread.start()
    try:
        assert is_in.wait(10)
        until = time.monotonic() + (10.0 if expected else 0.2)
        while (found := waiting.waits_in(thread.ident)) == ("", "") and time.monotonic() < until:
            thread.join(0.01)
        assert found[0] == expected
        assert found[1].startswith(Path(__file__).name) == bool(expected)
    finally:
        may_go.set()
        thread.join()


@pytest.mark.parametrize("found", [None, SimpleNamespace(f_back=None), object()])
def test_what_is_no_frame_is_nowhere(waiting, monkeypatch, found):
    """A stack that changes while it is read may hand it out; the heart goes on beating."""
    monkeypatch.setattr(whereabouts.sys, "_current_frames", lambda: {7: found})
    assert waiting.waits_in(7) == ("", "")
