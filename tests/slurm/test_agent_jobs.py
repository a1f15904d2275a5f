"""Arrays of agents: submitted where there are none, and cancelled; no other job is touched."""

import pytest

from hetero_hvd.driver.workers.launchers.srun import NOT_OF_THIS_NODE
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.slurm.agent_jobs import AgentJobs


@pytest.fixture
def rig(programs, arrays):
    """The programs and the folder."""
    return programs, arrays


def asked(programs, name):
    """What a program was asked, a line each time."""
    path = programs / f"{name}.asked"
    return path.read_text().splitlines() if path.exists() else []


def comment(folder, pool):
    """What Slurm keeps of a job of the folder."""
    return f"hetero-hvd:{pool}:{folder}"


def test_what_is_not_there_is_submitted_from_its_folder(rig):
    """With nothing of this process's own job and GPUs, and all else that it has."""
    programs, folder = rig
    leaking = dict.fromkeys(NOT_OF_THIS_NODE, "7") | {
        "SLURM_MEM_PER_NODE": "1",
        "SBATCH_ARRAY": "1",
    }
    kept = {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/home/me", "PATH": str(programs)}
    kept["PATH"] += ":/usr/bin:/bin"
    assert AgentJobs(folder, leaking | kept).submit() == {"1": "cpu", "2": "gpu"}
    words = [
        f"--parsable --comment={comment(folder, p)} {folder}/agents-{p}.sh" for p in ("cpu", "gpu")
    ]
    assert asked(programs, "sbatch") == words
    assert (programs / "sbatch.folder").read_text().strip() == str(folder)
    lines = (programs / "sbatch.environment").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert found.items() >= kept.items()
    assert found.keys().isdisjoint(leaking)


OTHERS = "7 (null)\n8 hetero-hvd:gpu:/elsewhere\n9 a comment of mine\n"


@pytest.mark.parametrize(
    ("there", "new"),
    [
        ({}, ["cpu", "gpu"]),
        ({"4": "gpu"}, ["cpu"]),
        ({"4": "gpu", "5": "cpu"}, []),
    ],
)
def test_what_is_there_stays_and_is_cancelled_at_the_end(rig, there, new):
    """Jobs of other folders and of the user's own are neither counted nor cancelled."""
    programs, folder = rig
    own = "".join(f"{number} {comment(folder, pool)}\n" * 2 for number, pool in there.items())
    (programs / "squeue.answer").write_text(OTHERS + own)
    jobs = AgentJobs(folder, {"PATH": f"{programs}:/usr/bin:/bin"})
    assert jobs.present() == there
    submitted = jobs.submit()
    assert sorted(submitted.values()) == new
    assert jobs.submit() == {}
    assert jobs.cancel() == there | submitted
    assert asked(programs, "scancel") == [" ".join(there | submitted)]
    assert jobs.cancel() == {}
    assert len(asked(programs, "scancel")) == 1


def test_a_pool_that_slurm_refuses_leaves_none_behind(rig):
    """What was submitted here before is cancelled; the line says what Slurm says."""
    programs, folder = rig
    (folder / "agents-bad.sh").touch()
    (programs / "squeue.answer").write_text(f"40 {comment(folder, 'gpu')}\n")
    (folder / "agents-a.sh").touch()
    with pytest.raises(JobError, match="invalid partition"):
        AgentJobs(folder, {"PATH": f"{programs}:/usr/bin:/bin"}).submit()
    assert asked(programs, "scancel") == ["1"]  # of `a`; the one of `gpu` was there before


def test_a_folder_without_agents_is_refused(tmp_path):
    """One line, with what to do."""
    with pytest.raises(UserError, match="write the folder with hetero-hvd deploy slurm"):
        AgentJobs(tmp_path, {})
