"""Handwritten digits by hetero_hvd."""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data[:1792], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:1792])
data = TensorDataset(images, labels)
train = DataLoader(data, batch_size=128)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
trainer = hetero_hvd.Trainer(model, optimizer, train)

for _ in trainer.epochs(5):
    for x, y in trainer.batches():
        trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)

found = cross_entropy(model(images), labels)
if trainer.is_leader:
    print(f"loss {found:.6f}")
