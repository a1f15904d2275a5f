"""A program of Slurm's that fails is told in one line."""

import pytest

from hetero_hvd.errors import JobError
from hetero_hvd.slurm import programs as door
from hetero_hvd.slurm.programs import ask


def test_what_it_prints_is_the_answer(programs):
    """As it is."""
    assert ask("scontrol", "show", "hostnames", "fast[1-2]") == "fast1\nfast2\n"
    assert programs


def test_what_is_no_utf_8_is_read_all_the_same(programs):
    """A batch script may be in Latin-1, and so may an error be."""
    (programs / "scontrol").write_text("#!/bin/sh\nprintf 'caf\\351\\n'\n")
    assert ask("scontrol") == "caf\ufffd\n"
    (programs / "scontrol").write_text("#!/bin/sh\nprintf 'caf\\351' >&2; exit 1\n")
    with pytest.raises(JobError, match=r"^scontrol: caf\ufffd$"):
        ask("scontrol")


LIKED = ("SQUEUE_STATES", "SQUEUE_FORMAT", "SQUEUE_PARTITION", "SCONTROL_ALL", "SLURM_CLUSTERS")


@pytest.mark.parametrize("name", LIKED)
def test_what_the_user_likes_to_see_changes_no_answer(programs, monkeypatch, name):
    """SQUEUE_STATES=PENDING would hide the job itself; where Slurm is counts."""
    (programs / "scontrol").write_text(f"#!/bin/sh\necho ${name} $SLURM_CONF\n")
    monkeypatch.setenv(name, "given")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm")
    assert ask("scontrol") == "/etc/slurm\n"


FAILURES = {
    "an error": ("printf 'error:\\nInvalid\\n' >&2; exit 1", "scontrol show job: error: Invalid"),
    "silent": ("exit 3", "scontrol show job: exit code 3"),
    "late": ("exec sleep 9", "scontrol show job: no answer in 0.1 s; try again later"),
}


@pytest.mark.parametrize(("script", "words"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line(programs, monkeypatch, script, words):
    """With the command, and what it said."""
    monkeypatch.setattr(door, "ANSWER_SECONDS", 0.1 if "sleep" in script else 30.0)
    (programs / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(JobError) as error:
        ask("scontrol", "show", "job")
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("said", "may_pass"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("error: slurm_receive_msg: Socket timed out on send/recv operation", True),
        ("error: Zero Bytes were transmitted or received", True),
        ("Unexpected message received for job 1", True),
        ("error: Munge encode failed: Failed to access socket: No such file or directory", True),
        ("slurm_load_jobs error: Protocol authentication error", True),
        ("error: Slurm temporarily unable to accept job, sleeping and retrying", True),
        ("error: Invalid job id specified", False),
        ("error: fetch_config: DNS SRV lookup failed", False),
    ],
)
def test_a_controller_that_is_away_may_come_back(programs, said, may_pass):
    """As in its own restart, in which a requeued driver may start: that ends with 75, and not 2."""
    (programs / "scontrol").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    with pytest.raises(JobError) as error:
        ask("scontrol", "show", "job")
    assert error.value.may_pass == may_pass


def test_where_there_is_no_slurm_it_says_so(monkeypatch):
    """A node of the allocation may have less than the one where it was submitted."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JobError, match="must be in PATH where --slurm is given"):
        ask("scontrol")
