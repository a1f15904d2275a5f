"""Handwritten digits with a small CNN: the same script on machines of unequal speed."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
train = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=256, shuffle=True)
test = DataLoader(TensorDataset(images[:360], labels[:360]), batch_size=256)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
trainer = hetero_hvd.Trainer(model, optimizer, train, scheduler=scheduler)

for epoch in trainer.epochs(60):
    for x, y in trainer.batches():
        loss = trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)
    accuracy = trainer.evaluate(lambda x, y: {"accuracy": (model(x).argmax(1) == y).float().mean()}, test)
    if trainer.is_leader:
        print(f"epoch {epoch}  loss {loss:.4f}  accuracy {accuracy['accuracy']:.4f}")
