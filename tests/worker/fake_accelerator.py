"""Accelerators as unkind as real ones: what they are given is done later, if the test lets them.

`FakeTorch` takes the place of torch in `hetero_hvd.worker.accelerator`. A device works off its
streams only when `advance` is called; until then copies have not happened, events are not passed,
and what the host reads of a copy under way is NaN.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import torch


class DeviceTensor(torch.Tensor):
    """A tensor that says that it is on a device; copies from and to it wait in that one's queue."""

    @staticmethod
    def on(device, values, fake):
        """These values, on a device."""
        tensor = torch.as_tensor(values, dtype=torch.float32).clone().as_subclass(DeviceTensor)
        tensor.place = torch.device(device)
        tensor.fake = fake
        return tensor

    @classmethod
    def like(cls, func, source):
        """The same values on the same device; those of a clone are there when it has made it."""
        plain = source.as_subclass(torch.Tensor)
        made = plain.detach() if func is torch.Tensor.detach else torch.full_like(plain, torch.nan)
        result = made.as_subclass(cls)
        result.place = source.place
        result.fake = source.fake
        if func is torch.Tensor.clone:
            source.fake.current[source.place.index].add(lambda: made.copy_(plain))
        return result

    @property
    def device(self):
        """Not the host, whatever torch would say."""
        return self.place

    def record_stream(self, stream):
        """Its memory is not free before that stream has come so far."""
        self.fake.recorded.append(stream)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """All but a copy is as on the host."""
        if func is torch.Tensor.copy_:
            own = next(arg for arg in args if isinstance(arg, DeviceTensor))
            target, source = (arg.as_subclass(torch.Tensor) for arg in args)
            own.fake.current[own.place.index].add(lambda: target.copy_(source))
            return args[0]
        if func in (torch.Tensor.detach, torch.Tensor.clone):
            return cls.like(func, *args)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class FakeStream:
    """Work in order; some of it waits for other streams."""

    def __init__(self, fake, device):
        self.fake = fake
        self.device = torch.device(device)
        self.work = []
        self.num_done = 0
        fake.streams.append(self)

    def add(self, work, when=lambda: True):
        """Queue it; gives its number."""
        self.work.append((work, when))
        return len(self.work)

    def advance(self):
        """Do one piece of work, if it need not wait; whether it did."""
        if self.num_done == len(self.work):
            return False
        work, when = self.work[self.num_done]
        if not when():
            return False
        work()
        self.num_done += 1
        return True

    def wait_stream(self, other):
        """What is queued here from now on waits for what is queued there now."""
        number = len(other.work)
        self.add(lambda: None, lambda: other.num_done >= number)

    def __enter__(self):
        self.before = self.fake.current[self.device.index]
        self.fake.current[self.device.index] = self

    def __exit__(self, *_):
        self.fake.current[self.device.index] = self.before


class FakeEvent:
    """A place in a stream; `fake.clock_ms` is the device's time when it passes it."""

    def __init__(self, fake, device, enable_timing):
        self.fake = fake
        self.device = device
        self.is_timed = enable_timing
        self.stream = None
        self.passed_ms = None

    def record(self, stream):
        """As in torch, another device's stream is refused."""
        assert stream.device == self.device, "torch: the stream's device must match the event's"
        self.stream = stream
        self.passed_ms = None
        stream.add(self._pass)

    def _pass(self):
        self.passed_ms = self.fake.clock_ms

    def query(self):
        """One that was never recorded is passed, as in torch."""
        return self.stream is None or self.passed_ms is not None

    def elapsed_time(self, end):
        """As in torch: an error before both are passed."""
        assert self.is_timed
        assert end.is_timed
        if self.passed_ms is None or end.passed_ms is None:
            raise RuntimeError("device not ready")
        return end.passed_ms - self.passed_ms


class FakeModule:
    """What `torch.cuda` and `torch.xpu` have alike, for two devices."""

    def __init__(self, num_devices):
        self.reserved = 60
        self.allocated = 40
        self.peak = 50
        self.free = 30
        self.total = 100
        self.tells_free = True
        self.seeds = []
        self.states = []
        self.default_generators = tuple(torch.Generator() for _ in range(num_devices))

    def is_initialized(self):
        """Only once somebody has drawn from it."""
        return bool(self.states)

    def get_device_name(self, device=None):
        """Of whichever."""
        return f"Card {0 if device is None else device.index}"

    def get_device_properties(self, device):
        """Identity and memory."""
        return SimpleNamespace(uuid=f"uuid-{device.index}", total_memory=self.total)

    def memory_reserved(self, _):
        """By the allocator."""
        return self.reserved

    def memory_allocated(self, _):
        """By tensors."""
        return self.allocated

    def max_memory_allocated(self, _):
        """By tensors, at most."""
        return self.peak

    def reset_peak_memory_stats(self, _):
        """The peak is what there is."""
        self.peak = self.allocated

    def mem_get_info(self, _):
        """Some devices do not tell."""
        if not self.tells_free:
            raise RuntimeError("The device doesn't support querying the available free memory")
        return self.free, self.total

    def empty_cache(self):
        """What no tensor has is free again."""
        self.free += self.reserved - self.allocated
        self.reserved = self.allocated

    def manual_seed_all(self, seed):
        """Remembered."""
        self.seeds.append(seed)

    def get_rng_state_all(self):
        """One for each device."""
        return list(self.states)

    def set_rng_state_all(self, states):
        """The same."""
        self.states = list(states)


class FakeTorch:
    """torch with accelerators of a kind; all else is the real one's.

    Args:
        kind: `cuda` or `xpu`; empty: none.
        num_devices: How many.
        hip: Version of ROCm; None: it is not there.
        pins: Whether the system gives pinned memory.
    """

    def __init__(self, kind="cuda", *, num_devices=2, hip=None, pins=True):
        self.kind = kind
        self.pins = pins
        self.clock_ms = 0.0
        self.streams = []
        self.recorded = []
        self.working = threading.Lock()
        self.pinned = 0
        self.module = FakeModule(num_devices)
        self.current = [FakeStream(self, f"{kind}:{n}") for n in range(num_devices) if kind]
        self.version = SimpleNamespace(
            hip=hip,
            cuda="12.4" if kind == "cuda" and not hip else None,
            xpu="2025.1" if kind == "xpu" else None,
        )
        self.accelerator = SimpleNamespace(
            is_available=lambda: bool(kind),
            current_accelerator=lambda: torch.device(kind) if kind else None,
            device_count=lambda: num_devices,
            current_stream=lambda device: self.current[device.index],
            synchronize=lambda _: self.advance(1000),
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    def Event(self, device, enable_timing=False):  # noqa: N802 - torch's name
        """One of this device."""
        return FakeEvent(self, device, enable_timing)

    def Stream(self, device):  # noqa: N802 - torch's name
        """One of this device."""
        return FakeStream(self, device)

    def get_device_module(self, kind):
        """The only one that there is."""
        assert kind == self.kind
        return self.module

    def empty_like(self, tensor, *, device, pin_memory=False):
        """Host memory, in which nothing of use is yet."""
        assert device == "cpu"
        if pin_memory and not self.pins:
            raise RuntimeError("CUDA error: out of memory")
        self.pinned += pin_memory
        return torch.full(tuple(tensor.shape), float("nan"))

    def advance(self, num_pieces=1):
        """Let the devices do so many pieces of work, a millisecond each."""
        with self.working:  # workers are threads
            for _ in range(num_pieces):
                self.clock_ms += 1.0
                if not sum(stream.advance() for stream in self.streams):
                    break
