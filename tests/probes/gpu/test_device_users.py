"""Who uses a GPU, from what the kernel shows of a process."""

import os
import pwd

import pytest

from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import (
    LAUNCH_VARIABLE,
    WorkerIdentity,
    WorkerLaunch,
    launch_to_text,
)
from hetero_hvd.probes.gpu.device_users import DeviceUsers

OURS = launch_to_text(WorkerLaunch(identity=WorkerIdentity(worker=WorkerId("a", 3), run="r50")))
ID = "0123456789abcdef" * 4
POD = "12345678-1234-1234-1234-123456789abc"
CASES = {
    "ours": (
        "python\0train.py\0--token=secret\0",
        f"{LAUNCH_VARIABLE}={OURS}",
        "",
        "train.py",
        "r50 a:3",
    ),
    "a module": ("/usr/bin/python3.12\0-u\0-m\0torch.run\0x\0", "", "", "torch.run", ""),
    "a line of code": ("python3\0-c\0import secret\0", "", "", "python3", ""),
    "a path": ("python3\0/home/alice/train.py\0", "", "", "train.py", ""),
    "Slurm": ("./a.out\0", "SLURM_JOB_ID=123\0", "", "a.out", "slurm 123"),
    "Slurm of another user": (
        "./a.out\0",
        None,
        "0::/system.slice/slurmstepd.scope/job_77/step_0\n",
        "a.out",
        "slurm 77",
    ),
    "a pod": (
        "node\0",
        None,
        f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/x\n",
        "node",
        f"pod {POD.replace('-', '_')}",
    ),
    "docker": ("x\0", None, f"0::/system.slice/docker-{ID}.scope\n", "x", f"container {ID[:12]}"),
    "docker, version 1": ("x\0", None, f"3:cpu:/docker/{ID}\n", "x", f"container {ID[:12]}"),
    "podman": ("x\0", None, f"0::/user.slice/libpod-{ID}.scope\n", "x", f"container {ID[:12]}"),
    "lxc": ("x\0", None, "0::/lxc.payload.web/init\n", "x", "container web"),
    "nobody's": ("x\0", "HOME=/\0", "0::/user.slice\n", "x", ""),
    "a broken record of ours": ("x\0", f"{LAUNCH_VARIABLE}={{", "", "x", ""),
    "no command line": ("", "", "", "comm name", ""),
    "a name that speaks to the terminal": ("a\x1b[31m\nb\0", "", "", "a?[31m?b", ""),
    "a name without end": ("x" * 5000 + "\0", "", "", "x" * 64, ""),
    "bytes that are no text": (b"\xff\xfe\0", b"\xff=\xfe\0", "", "\ufffd\ufffd", ""),
}


def write(folder, line, environment, groups, started="5"):
    """A process."""
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"7 (a) b) S {' '.join(['0'] * 18)} {started} 0\n")
    (folder / "comm").write_text("comm name\n")
    for name, content in (("cmdline", line), ("environ", environment), ("cgroup", groups)):
        if content is not None:
            data = content if isinstance(content, bytes) else content.encode()
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("name", CASES)
def test_a_process_is_known_by_owner_program_and_job(tmp_path, name):
    """Its arguments and its environment stay where they are."""
    line, environment, groups, command, job = CASES[name]
    write(tmp_path / "7", line, environment, groups)
    (user,) = DeviceUsers(tmp_path).who({7: 1024})
    assert (user.pid, user.command, user.job, user.memory_bytes) == (7, command, job, 1024)
    assert user.user == pwd.getpwuid(os.getuid()).pw_name
    assert "secret" not in str(user)


NAMES = {
    "plain": (b"comm name\n", "comm name"),
    "another encoding": ("größe".encode("latin-1"), "gr\ufffd\ufffde"),
    "no text": (b"\xff\xfe\n", "\ufffd\ufffd"),
    "nothing": (b"", ""),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_process_without_a_command_line_goes_by_its_name(tmp_path, name):
    """Which may be any bytes: else one process would hide all GPUs."""
    given, shown = NAMES[name]
    write(tmp_path / "7", "", "", "")
    (tmp_path / "7" / "comm").write_bytes(given)
    assert DeviceUsers(tmp_path).who({7: None})[0].command == shown


def test_who_is_gone_or_another_one_under_the_same_number(tmp_path):
    """Of a process that cannot be seen the number is told; a new one is looked up."""
    users = DeviceUsers(tmp_path)
    write(tmp_path / "7", "one\0", "", "")
    found = [users.who({7: None})[0].command]
    write(tmp_path / "7", "two\0", "", "")
    found.append(users.who({7: None})[0].command)
    write(tmp_path / "7", "three\0", "", "", started="6")
    found.append(users.who({7: None})[0].command)
    assert found == ["one", "one", "three"]
    assert str(users.who({8: None})[0]) == "pid 8 ? ?"
    users.forget_others(set())
    write(tmp_path / "7", "four\0", "", "", started="6")
    assert users.who({7: None})[0].command == "four"
