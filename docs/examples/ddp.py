"""Handwritten digits by DistributedDataParallel."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data[:1792], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:1792])
data = TensorDataset(images, labels)
sampler = DistributedSampler(data, shuffle=False)
train = DataLoader(data, batch_size=128 // dist.get_world_size(), sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

for epoch in range(5):
    sampler.set_epoch(epoch)
    for x, y in train:
        optimizer.zero_grad()
        cross_entropy(ddp(x), y).backward()
        optimizer.step()

found = cross_entropy(model(images), labels)
if dist.get_rank() == 0:
    print(f"loss {found:.6f}")
dist.destroy_process_group()
