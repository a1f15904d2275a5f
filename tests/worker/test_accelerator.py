"""The door to accelerators, with devices of each kind that are late, full, or not alone."""

import gc
from types import SimpleNamespace

import pytest
import torch
from fake_accelerator import DeviceTensor, FakeTorch

from hetero_hvd.probes.machine.memory import MemoryUse
from hetero_hvd.worker import accelerator
from hetero_hvd.worker.micro_batch import memory_meter
from hetero_hvd.worker.micro_batch.memory_meter import MemoryMeter, device_memory_bytes
from hetero_hvd.worker.out_of_memory import is_out_of_memory
from tests.module_clock import give_clock

CPU = torch.device("cpu")


@pytest.fixture
def install(monkeypatch):
    """Puts accelerators in the place of those that this machine has; sleeping lets them work."""

    def put(fake):
        monkeypatch.setattr(accelerator, "torch", fake)
        monkeypatch.setattr(accelerator, "time", SimpleNamespace(sleep=lambda _: fake.advance()))
        return fake

    return put


@pytest.mark.parametrize(
    ("fake", "knows", "uuid", "version"),
    [
        (FakeTorch("cuda"), {"NVML", "NCCL"}, "GPU-uuid-1", "12.4"),
        (FakeTorch("cuda", hip="6.2"), {"NCCL"}, "cuda-uuid-1", "ROCm 6.2"),
        (FakeTorch("xpu"), set(), "xpu-uuid-1", "oneAPI 2025.1"),
    ],
    ids=["NVIDIA", "AMD", "Intel"],
)
def test_each_kind_of_accelerator_says_what_it_is(install, fake, knows, uuid, version):
    """Ranks of a host share its devices in turn; NVIDIA's tools are asked about NVIDIA's only."""
    install(fake)
    own = accelerator.own_device(3)
    assert own == torch.device(fake.kind, 1)
    assert accelerator.own_device(2).index == 0
    assert accelerator.is_accelerator(own)
    assert accelerator.is_nvidia(own) == ("NVML" in knows)
    assert accelerator.has_nccl(own) == ("NCCL" in knows)
    assert accelerator.uuid_of(own) == uuid
    assert accelerator.name_of(own) == "Card 1"
    assert accelerator.toolkit_version() == version
    facts = accelerator.numeric_facts()
    assert (facts["gpu"], facts["cuda"]) == ("Card 0", version)
    activities = torch.profiler.ProfilerActivity
    assert accelerator.profiler_activities() == [
        activities.CPU,
        getattr(activities, fake.kind.upper()),
    ]
    assert len(accelerator.generators()) == 2
    assert device_memory_bytes(own) == 100


def test_without_an_accelerator_all_is_the_cpu(install):
    """Nothing is asked of a module that is not there."""
    install(FakeTorch("", num_devices=0))
    assert accelerator.own_device(5) == CPU
    assert not accelerator.is_accelerator(CPU)
    assert not accelerator.is_nvidia(CPU)
    assert accelerator.uuid_of(CPU) == accelerator.toolkit_version() == ""
    assert accelerator.numeric_facts() == {}
    assert accelerator.profiler_activities() == [torch.profiler.ProfilerActivity.CPU]
    assert accelerator.random_states() == list(accelerator.generators()) == []
    accelerator.restore_random_states([])
    accelerator.seed_all(1)
    accelerator.empty_cache()
    accelerator.synchronize(CPU)
    assert device_memory_bytes(CPU) == 0


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize(
    ("tells_free", "node_limit", "limit"),
    [(True, None, 90), (True, 70, 70), (True, 1000, 90), (False, None, 100)],
)
def test_the_room_of_a_device_is_what_it_has_and_what_is_free(
    install, kind, tells_free, node_limit, limit
):
    """Others may use it too; where a driver does not tell, nobody is taken to."""
    fake = install(FakeTorch(kind))
    fake.module.tells_free = tells_free
    meter = MemoryMeter(torch.device(kind, 1), node_limit)
    use = meter.read()
    assert (use.used_bytes, use.peak_bytes, use.limit_bytes) == (40, 50, limit)
    meter.restart()
    assert meter.read().peak_bytes == 40
    accelerator.empty_cache()
    assert (fake.module.reserved, fake.module.free) == (40, 50)


def test_the_room_on_the_host_is_looked_for_once_a_second(monkeypatch):
    """While sums are under way; else it is read with the rest. What is used is new each time."""
    found = [MemoryUse(used_bytes=1, peak_bytes=2, limit_bytes=2**50 + n) for n in range(3)]
    now = [100.0]
    monkeypatch.setattr(memory_meter, "host_memory", lambda _: found.pop(0))
    give_clock(monkeypatch, memory_meter, monotonic=lambda: now[0])
    meter = MemoryMeter(CPU, None)
    assert (meter.read().peak_bytes, meter.read().limit_bytes) == (2, 2**50)
    meter.look()
    assert meter.read().peak_bytes > 2**20
    now[0] += memory_meter.LIMIT_SECONDS
    assert meter.read().limit_bytes == 2**50
    meter.look()
    assert meter.read().limit_bytes == 2**50 + 1
    now[0] += 2 * memory_meter.LIMIT_SECONDS
    assert meter.read().limit_bytes == 2**50 + 2


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.OutOfMemoryError("XPU out of memory. Tried to allocate 2.00 GiB."),
        *(RuntimeError(f"{words}: at line 7") for words in accelerator.OUT_OF_MEMORY_WORDS),
    ],
    ids=str,
)
def test_every_librarys_way_to_lack_memory_is_known(error):
    """Each is worth a smaller micro-batch; other errors are not."""
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError(str(error)))


def test_random_numbers_of_devices_are_kept_only_where_they_fit(install):
    """Of devices that nobody has used there are none; two states do not fit three devices."""
    fake = install(FakeTorch())
    assert accelerator.random_states() == []
    states = [torch.ByteTensor([1]), torch.ByteTensor([2])]
    accelerator.restore_random_states(states)
    assert accelerator.random_states() == states
    accelerator.restore_random_states(states[:1])
    assert accelerator.random_states() == states
    accelerator.seed_all(7)
    assert fake.module.seeds == [7]


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_an_event_belongs_to_its_own_device_and_is_late(install, kind):
    """The other device's queue is no concern of it; until it is passed no time is told."""
    fake = install(FakeTorch(kind))
    device = torch.device(kind, 1)
    fake.current[0].add(lambda: None, when=lambda: False)  # the first device hangs
    begin, end = (accelerator.DeviceEvent(device, is_timed=True) for _ in range(2))
    begin.record()
    for _ in range(3):
        fake.current[1].add(lambda: None)
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="not ready"):
        begin.elapsed_time(end)
    end.wait()
    assert begin.elapsed_time(end) == 4.0


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize("pins", [True, False])
def test_a_copy_to_the_host_waits_for_the_device_and_does_not_stop_it(install, kind, pins):
    """What computes the tensor comes first; what is queued afterwards waits for no copy."""
    fake = install(FakeTorch(kind, pins=pins))
    tensor = DeviceTensor.on(f"{kind}:1", [0.0, 0.0], fake)
    fake.current[1].add(lambda: tensor.as_subclass(torch.Tensor).fill_(5.0))
    computing = fake.current[1]
    host, copied = accelerator.HostCopier(torch.device(kind, 1)).copy(tensor)
    computing.add(lambda: None, when=lambda: False)
    assert fake.current[1] is computing
    assert host.isnan().all()
    assert not copied.query()
    copied.wait()
    assert host.tolist() == [5.0, 5.0]
    assert fake.pinned == pins
    assert fake.recorded  # so that torch does not give its memory to another tensor too soon


def test_seeding_and_the_search_for_generators_know_the_devices(install):
    """The generators of devices are global ones, which no script owns."""
    from hetero_hvd.worker.data.own_generators import OwnGenerators  # noqa: PLC0415
    from hetero_hvd.worker.data.seeding import own_course, seed_all  # noqa: PLC0415

    fake = install(FakeTorch())
    fake.module.states = [torch.ByteTensor([1]), torch.ByteTensor([2])]
    with own_course(3):
        seed_all(4)
        fake.module.states = []
    assert fake.module.seeds == [3, 4]
    assert len(fake.module.states) == 2
    roots = {"script": list(fake.module.default_generators)}
    assert OwnGenerators(roots).states() == {}
    gc.collect()
