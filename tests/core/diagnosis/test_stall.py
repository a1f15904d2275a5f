"""That nobody takes a step is told once, with whom all wait for, and so is its end."""

from __future__ import annotations

import pytest

from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.diagnosis.stall import EVALUATION_SECONDS, STALL_SECONDS, StallWatch
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.messages import Heartbeat, WorkerId

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)


class Standing:
    """Two workers whose hearts beat once a second; `phases` are those that they are in."""

    def __init__(self):
        self.watch = StallWatch()
        self.watch.begin((ALPHA, BETA), 0, 0.0)
        self.seconds = 0.0
        self.steps = 0

    def go_on(self, seconds, *phases, steps_per_second=0, is_training=True):
        """What is said in the next seconds; a worker whose phase is None is silent."""
        found = []
        for _ in range(int(seconds)):
            self.seconds += 1.0
            self.steps += steps_per_second
            for worker, phase in zip((ALPHA, BETA), phases, strict=True):
                if phase is not None:
                    beat = Heartbeat(applied_steps=self.steps, phase=phase)
                    self.watch.heard(worker, beat, self.seconds)
            found.append(self.watch.look(self.seconds, is_training=is_training))
        return [event for event in found if event is not None]


@pytest.mark.parametrize(
    ("phases", "who", "words"),
    [
        (("comm_wait", "data_wait"), (BETA,), "waiting for beta:0 in data wait"),
        (("forward", "comm_wait"), (ALPHA,), "waiting for alpha:0 in forward"),
        (("comm_wait", ""), (BETA,), "waiting for beta:0 in its script"),
        (("comm_wait", None), (BETA,), "waiting for beta:0 which is silent"),
        (("rendezvous", "rendezvous"), (ALPHA, BETA), "alpha:0 in a new rendezvous, beta:0 in"),
        (("comm_wait", "comm_wait"), (), "all wait in a reduction"),
    ],
)
def test_whom_all_wait_for_is_told_once_and_so_is_the_end(phases, who, words):
    """Whatever they are in, after ten seconds; the judgement has it as long as it lasts."""
    job, judge = Standing(), Diagnoser()
    assert job.go_on(5, "forward", "forward", steps_per_second=10) == []
    (told,) = job.go_on(40, *phases)
    assert (told.is_stalled, told.step, told.workers) == (True, 50, who)
    assert told.seconds == STALL_SECONDS
    assert words in event_in_words(told)
    assert "nobody has stepped for 10 s" in event_in_words(told)
    judge.observe(told)
    assert judge.findings()[0].kind == "stall"
    (over,) = job.go_on(3, "forward", "forward", steps_per_second=10)
    assert not over.is_stalled
    assert event_in_words(over) == "step 60: training goes on after 41 s without a step"
    judge.observe(over)
    assert judge.findings()[0].kind != "stall"


def test_steps_that_take_long_are_no_stall():
    """Three times the longest of the last ones is nothing unusual."""
    job = Standing()
    job.go_on(2, "forward", "forward", steps_per_second=1)
    assert len(job.go_on(12, "forward", "forward")) == 1  # the first long step is unusual
    job.go_on(1, "forward", "forward", steps_per_second=1)
    for _ in range(5):
        assert job.go_on(30, "forward", "forward") == []
        job.go_on(1, "forward", "forward", steps_per_second=1)


def test_an_evaluation_may_take_a_minute():
    """Then it is told as well."""
    job = Standing()
    assert job.go_on(EVALUATION_SECONDS - 1, "comm_wait", "evaluation") == []
    (told,) = job.go_on(2, "comm_wait", "evaluation")
    assert told.phases == ("evaluation",)


def test_a_job_that_pauses_or_has_ended_is_no_stall():
    """Nobody is to take a step; who has finished is not waited for."""
    job = Standing()
    assert job.go_on(60, "comm_wait", "", is_training=False) == []
    job.watch.left(ALPHA)
    job.watch.left(BETA)
    assert job.go_on(60, None, None) == []


def test_who_begins_another_loop_is_waited_for_again():
    """From then on, and not for what its script did between the two."""
    job = Standing()
    job.go_on(5, "forward", "forward", steps_per_second=1)
    for worker in (ALPHA, BETA):
        job.watch.left(worker)
    assert job.go_on(60, "", "") == []
    for worker in (ALPHA, BETA):
        job.watch.returned(worker, job.seconds)
    assert job.go_on(STALL_SECONDS - 1, "comm_wait", "data_wait") == []
    (told,) = job.go_on(2, "comm_wait", "data_wait")
    assert told.workers == (BETA,)


def test_what_the_watch_has_slept_is_nobodys_fault():
    """A virtual machine that is moved stops the driver: nobody stands for that."""
    job = Standing()
    assert job.go_on(5, "forward", "forward", steps_per_second=10) == []
    job.seconds += 20
    job.watch.slept(20)
    assert job.go_on(9, None, None) == []
    (told,) = job.go_on(2, None, None)
    assert told.seconds == STALL_SECONDS
