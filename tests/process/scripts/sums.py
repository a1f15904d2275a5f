"""Sums of many sizes and types: how far they are off, and what each worker has of each."""

import hashlib

import horovod.torch as hvd
import torch
from scripted import report

hvd.init()
SIZES = (1, 7, 1000, 5461, 5462, 20_000)
"""Around the size where three workers stop sending all they have to each other: 64 KiB in all."""

DTYPES = (torch.float16, torch.float32, torch.float64, torch.int32)
OPERATIONS = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}


def value(rank: int, size: int) -> torch.Tensor:
    """What a rank adds: small whole numbers, so that every type can hold the result."""
    return (torch.arange(size) * 7 + rank * 3) % 5


wrong, found = [], hashlib.sha256()
for size in SIZES:
    ranks = torch.stack([value(rank, size) for rank in range(hvd.size())])
    expected = {
        "sum": ranks.sum(0),
        "min": ranks.amin(0),
        "max": ranks.amax(0),
        "product": ranks.prod(0),
    }
    for dtype in DTYPES:
        for name, operation in OPERATIONS.items():
            tensor = value(hvd.rank(), size).to(dtype)
            out = hvd.allreduce(tensor, name=f"{name}.{size}.{dtype}", op=operation)
            if not torch.equal(out, expected[name].to(dtype)):
                wrong.append(f"{name} of {size} {dtype}")
    noisy = torch.randn(size, generator=torch.Generator().manual_seed(hvd.rank()))
    found.update(hvd.allreduce(noisy, name=f"noise.{size}", op=hvd.Sum).numpy().tobytes())
report({"wrong": wrong, "bits": found.hexdigest()})
hvd.shutdown()
