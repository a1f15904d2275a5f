"""Of a pod that `hetero-hvd deploy kubernetes` has written, doctor has nothing to say."""

from types import SimpleNamespace

import pytest

from hetero_hvd.deploy.checks import num_bytes
from hetero_hvd.deploy.kubernetes.options import SHARED_MEMORY, places_of
from hetero_hvd.deploy.kubernetes.pod import num_cores
from hetero_hvd.pod import files, resources
from tests.deploy.containers import Pod
from tests.deploy.test_kubernetes import WAYS, templates, written

MACHINE_BYTES = 2**50
SIZES = {
    "half a core": ("--cpu", "1", "--agent-cpu", "500m"),
    "cores and a half": ("--cpu", "1", "--gpu", "1", "--agent-cpu", "2.5"),
    "several GPUs": ("--gpu", "1", "--gpus-per-agent", "3", "--agent-cpu", "8"),
    "much shared memory": ("--cpu", "1", "--shm", "60Gi", "--agent-memory", "64Gi"),
}


def in_pod(monkeypatch, template, folder):
    """This process sees what one in the pod would, on a node with GPUs whose image asks for all."""
    (folder / "secret").mkdir(parents=True)
    pod = Pod(template, "a-pod", folder, secret=folder / "secret", config={}, claims=folder)
    limits = pod.container["resources"]["limits"]
    num_gpus = int(limits.get("nvidia.com/gpu", 0))
    granted = ",".join(f"GPU-{number}" for number in range(num_gpus))
    variables = {"NVIDIA_VISIBLE_DEVICES": "all"} | pod._own_environment(pod.container)
    variables |= {"NVIDIA_VISIBLE_DEVICES": granted} if num_gpus else {}
    for name in ("OMP_NUM_THREADS", "NVIDIA_VISIBLE_DEVICES", "POD_IP"):
        monkeypatch.setenv(name, variables[name])
    memory_bytes = num_bytes(limits["memory"])
    found = [SimpleNamespace(is_mig=False)] * num_gpus
    monkeypatch.setattr(resources, "gpus", lambda: found)
    monkeypatch.setattr(resources, "allowed_cores", lambda: num_cores(limits["cpu"]))
    monkeypatch.setattr(
        resources.psutil, "virtual_memory", lambda: SimpleNamespace(total=MACHINE_BYTES)
    )
    for module in (files, resources):
        monkeypatch.setattr(module, "allowed_memory_bytes", lambda: memory_bytes)
    (shared,) = [one["emptyDir"] for one in pod.spec["volumes"] if one["name"] == "shm"]
    size = min(num_bytes(shared["sizeLimit"]), memory_bytes)  # so does the kubelet
    monkeypatch.setattr(files.os, "statvfs", lambda _: SimpleNamespace(f_blocks=size, f_frsize=1))
    monkeypatch.setattr(files, "file_system_of", lambda _: "tmpfs")
    return num_gpus, {mount["mountPath"] for mount in pod.container["volumeMounts"]}


@pytest.mark.parametrize("flags", (WAYS | SIZES).values(), ids=WAYS | SIZES)
def test_doctor_has_nothing_to_say_of_our_own_manifests(tmp_path, monkeypatch, flags):
    """Of the driver's pod and of each kind of agent's."""
    places = places_of("train")
    for number, template in enumerate(templates(written(tmp_path / "out", *flags))):
        with monkeypatch.context() as patch:
            num_gpus, mounts = in_pod(patch, template, tmp_path / str(number))
            found = [
                files.shared_memory_finding(SHARED_MEMORY),
                resources.core_finding(max(1, num_gpus)),
                *resources.memory_findings(),
                resources.gpu_finding(lambda gpus=num_gpus: ["GPU"] * gpus),
            ]
        assert [one for one in found if one.to_do] == []
        assert {*places.writable, *(key.rpartition("/")[0] for key in places.keys)} <= mounts
