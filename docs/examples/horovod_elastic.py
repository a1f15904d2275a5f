"""Handwritten digits by elastic Horovod."""

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

hvd.init()
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data[:1792], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:1792])
data = TensorDataset(images, labels)
sampler = hvd.elastic.ElasticSampler(data, shuffle=False)
train = DataLoader(data, batch_size=128 // hvd.size(), sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def loop(state):
    for epoch in range(state.epoch, 5):
        for index, (x, y) in enumerate(train):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            sampler.record_batch(index, len(y))
            if index % 10 == 9:
                state.commit()
        state.epoch = epoch + 1
        sampler.set_epoch(state.epoch)
        state.commit()


loop(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0))

found = cross_entropy(model(images), labels)
if hvd.rank() == 0:
    print(f"loss {found:.6f}")
