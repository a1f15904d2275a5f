"""What a kill by the kernel teaches about a slot."""

from hetero_hvd.driver.workers.micro_batch_cap import MemoryCap


def killed(cap, told):
    """A worker has told its largest micro-batch and was killed; whether smaller ones may help."""
    cap.told = told
    cap.ended(was_killed=True)
    return bool(cap.failed)


def test_each_kill_halves_the_limit_down_to_one():
    """One sample at a time cannot be less."""
    cap = MemoryCap()
    assert [killed(cap, told) for told in (12, 6, 3, 1)] == [True, True, True, False]
    assert cap.limit == 1
    assert cap.is_hopeless


def test_nothing_is_learnt_of_a_worker_that_had_not_begun_or_did_not_obey():
    """Such deaths are counted like any other: they may come again and again."""
    cap = MemoryCap()
    assert not killed(cap, 0)
    assert killed(cap, 16)
    assert not killed(cap, 16)
    assert cap.limit == 8


def test_other_ends_leave_the_limit():
    """What was learnt is kept for the next worker of the slot."""
    cap = MemoryCap()
    killed(cap, 16)
    cap.told = 8
    cap.ended(was_killed=False)
    assert (cap.failed, cap.limit, cap.told, cap.is_hopeless) == (0, 8, 0, False)
