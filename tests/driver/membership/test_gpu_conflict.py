"""One worker for each GPU, whatever its machine is called."""

import pytest

from hetero_hvd.config import EmulateConfig, NodeConfig
from hetero_hvd.driver.membership.gpu_conflict import conflict_in_words, machines_of
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import Ready, WorkerId


def slot(name, gpu="", machine="m", emulate=None, **more):
    """A slot whose worker is ready."""
    worker, node = WorkerId(name, 0), NodeConfig(name=name, slots=1, emulate=emulate)
    facts = {"device_uuid": gpu, "machine_id": machine, "interface": "lo", "pid": 1, "versions": {}}
    ready = Ready(worker=worker, host=name, **facts)
    return Slot(worker=worker, node=node, output=None, ready=ready, **more)


def test_the_second_worker_on_a_gpu_is_refused():
    """The first is named; another GPU, or none, is nobody's business."""
    taken = [slot("alpha", "GPU-1"), slot("beta", "GPU-2"), slot("cpu")]
    new = slot("b", "GPU-2")
    assert conflict_in_words(new, new.ready, taken) == "beta:0 has its GPU, GPU-2"
    for free in (slot("b", "GPU-3"), slot("b")):
        assert conflict_in_words(free, free.ready, taken) is None


@pytest.mark.parametrize("other", [slot("a", "GPU-1", is_wanted=False), slot("a", "GPU-2")])
def test_who_leaves_keeps_no_gpu(other):
    """An entry may be renamed while its worker runs."""
    new = slot("b", "GPU-1")
    assert conflict_in_words(new, new.ready, [other]) is None


def test_emulated_nodes_may_share_a_gpu():
    """Only if both are: the other one would not be as fast as it says."""
    slow = EmulateConfig(relative_speed=0.5)
    one, two, real = slot("a", "G", emulate=slow), slot("b", "G", emulate=slow), slot("c", "G")
    assert conflict_in_words(one, one.ready, [two]) is None
    assert conflict_in_words(one, one.ready, [real]) is not None


def test_nodes_are_known_by_their_machines():
    """Of those whose workers have told."""
    silent = slot("c")
    silent.ready = None
    assert machines_of([slot("a", machine="x"), slot("b", machine=""), silent]) == {"a": "x"}
