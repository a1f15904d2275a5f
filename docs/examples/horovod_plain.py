"""Handwritten digits by plain Horovod."""

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data[:1792], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:1792])
data = TensorDataset(images, labels)
sampler = DistributedSampler(data, hvd.size(), hvd.rank(), shuffle=False)
train = DataLoader(data, batch_size=128 // hvd.size(), sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(5):
    sampler.set_epoch(epoch)
    for x, y in train:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

found = cross_entropy(model(images), labels)
if hvd.rank() == 0:
    print(f"loss {found:.6f}")
