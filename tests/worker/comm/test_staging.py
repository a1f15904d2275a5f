"""Sums of tensors on a device that computes late, beside a worker without one."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fake_accelerator import DeviceTensor, FakeTorch
from rendezvous import Hub, run_together

from hetero_hvd.worker import accelerator
from hetero_hvd.worker.comm.horovod import Interrupted

FAULTS = {
    "none": [],
    "broken before": [(0, "b", 1, "before")],
    "broken after": [(0, "b", 1, "after")],
    "broken at the other": [(1, "b", 1, "before")],
}


@pytest.fixture(params=["cuda", "xpu"])
def fake(request, monkeypatch):
    """Two devices of a kind; whoever sleeps lets them work."""
    fake = FakeTorch(request.param)
    monkeypatch.setattr(accelerator, "torch", fake)
    monkeypatch.setattr(accelerator, "time", SimpleNamespace(sleep=lambda _: fake.advance()))
    return fake


def tensors(fake, rank, index=1):
    """Three tensors: of rank 0 on the device that computes them later, of others on the host."""
    values = [[1.0, 2.0], [10.0], [100.0, 200.0, 300.0]]
    if rank:
        return [torch.tensor(each) for each in values]
    made = [DeviceTensor.on(f"{fake.kind}:{index}", [0.0] * len(each), fake) for each in values]
    for tensor, each in zip(made, values, strict=True):
        plain = tensor.as_subclass(torch.Tensor)
        fake.current[index].add(partial(plain.copy_, torch.tensor(each)))
    return made


def read(fake, tensor):
    """What a tensor holds when its device has done everything."""
    fake.advance(1000)
    return tensor.as_subclass(torch.Tensor).tolist()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_device_and_a_host_add_up_and_survive_a_broken_rendezvous(fake, fault):
    """The sum arrives where the tensor is; after a fault the step is done again, for the same."""

    def work(context):
        collective = context.collective
        num_faults = 0
        while True:
            mine = tensors(fake, collective.rank)
            try:
                handles = [
                    collective.sum_async(tensor, name)
                    for tensor, name in zip(mine, "abc", strict=True)
                ]
                if collective.rank == 0 and not num_faults:
                    assert not collective.is_done(handles[-1])
                for handle in reversed(handles):
                    assert collective.wait(handle) is not None
                    collective.wait(handle)  # again: the same answer
                assert all(collective.is_done(handle) for handle in handles)
                collective.wait(collective.sum_async(torch.zeros(1), "all have it"))
            except Interrupted:
                num_faults += 1
                collective.restart()
                continue
            return num_faults, [read(fake, tensor) for tensor in mine]

    hub = Hub(2, FAULTS[fault])
    results = run_together(hub, work)
    assert hub.fired == set(FAULTS[fault])
    assert [found for _, found in results] == [[[2, 4], [20], [200, 400, 600]]] * 2
    assert (results[0][0] > 0) == (fault != "none")


def staging(context):
    """The collective of one worker that takes itself for one of two: alone it would not reduce."""
    context.collective.size = 2
    return context.collective


def test_nothing_is_reduced_before_the_device_has_written_it(fake):
    """Not by a look, and not by another operation; a start waits for one after the other."""

    def work(context):
        collective = staging(context)
        mine = tensors(fake, collective.rank)
        handles = [collective.sum_async(each, name) for each, name in zip(mine, "abc", strict=True)]
        assert not collective.is_done(handles[0])
        assert not collective._hvd.hub.posts[collective._hvd.number, "a", 1]
        collective.start_staged()
        posted = collective._hvd.hub.posts[collective._hvd.number, "c", 1]
        assert posted[0].tolist() == [100.0, 200.0, 300.0]
        return [collective.wait(handle) is each for handle, each in zip(handles, mine, strict=True)]

    assert run_together(Hub(1), work) == [[True] * 3]


def test_what_was_not_started_when_a_rendezvous_ended_never_is(fake):
    """Its wait is interrupted, as that of any other operation of that rendezvous."""

    def work(context):
        collective = staging(context)
        old = collective.sum_async(tensors(fake, 0)[0], "a")
        collective.restart()
        staging(context)
        assert collective.is_done(old)
        with pytest.raises(Interrupted, match="is over"):
            collective.wait(old)
        new = tensors(fake, 0, index=0)[0]  # on another device
        collective.wait(collective.sum_async(new, "a"))
        return read(fake, new)

    assert run_together(Hub(1), work) == [[1.0, 2.0]]


def test_a_start_that_fails_is_told_to_whoever_waits_for_it(fake):
    """Not to whoever happens to ask for another one."""

    def work(context):
        collective = staging(context)
        mine = tensors(fake, 0)
        handle = collective.sum_async(mine[0], "a")
        collective._hvd.has_noticed = True  # a peer is lost: nothing can be submitted
        collective.start_staged()
        assert collective.is_done(handle)
        with pytest.raises(Interrupted, match="shut down"):
            collective.wait(handle)

    run_together(Hub(1), work)


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, torch.OutOfMemoryError])
def test_a_start_that_fails_otherwise_is_told_each_time(fake, kind):
    """What Horovod refuses, as two sums of one name, is no fault: who waits for it hears it."""

    def work(context):
        collective = staging(context)
        mine, others = tensors(fake, 0), tensors(fake, 0)

        def refuse(*_, **__):
            raise kind("Duplicate tensor name")

        handle = collective.sum_async(mine[0], "a")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(collective._hvd, "allreduce_async_", refuse)
            collective.start_staged()
        other = collective.sum_async(others[0], "b")
        collective.wait(other)
        assert collective.is_done(handle)
        for _ in range(2):
            with pytest.raises(kind, match="Duplicate"):
                collective.wait(handle)
        return read(fake, others[0])

    assert run_together(Hub(1), work) == [[1.0, 2.0]]


def test_no_room_on_the_host_is_a_lack_of_memory(fake, monkeypatch):
    """It is raised where the sum is asked for, and nothing of it is left."""

    def full(*_, **__):
        raise torch.OutOfMemoryError("no memory")

    def work(context):
        collective = staging(context)
        tensor = tensors(fake, 0)[0]
        with monkeypatch.context() as patch:
            patch.setattr(fake, "empty_like", full, raising=False)
            with pytest.raises(torch.OutOfMemoryError):
                collective.sum_async(tensor, "a")
        collective.wait(collective.sum_async(tensor, "a"))
        return read(fake, tensor)

    assert run_together(Hub(1), work) == [[1.0, 2.0]]


def test_the_sum_of_one_worker_does_not_travel(fake):
    """Neither to the host nor through Horovod; it is there at once, whatever the device."""

    def work(context):
        collective = context.collective
        collective.operations.take()
        mine = [*tensors(fake, 0), torch.ones(2)]
        handles = [collective.sum_async(tensor, f"{i}") for i, tensor in enumerate(mine)]
        assert all(collective.is_done(handle) for handle in handles)
        assert all(
            collective.wait(handle) is tensor for handle, tensor in zip(handles, mine, strict=True)
        )
        assert not collective.operations.take()
        return [read(fake, tensor) for tensor in mine]

    (found,) = run_together(Hub(1, []), work)
    assert found == [[1, 2], [10], [100, 200, 300], [1, 1]]
