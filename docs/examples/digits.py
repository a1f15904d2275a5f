"""Handwritten digits with a small CNN, on machines of unequal speed."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
train = DataLoader(TensorDataset(parts[0], parts[2]), batch_size=256, shuffle=True)
test = DataLoader(TensorDataset(parts[1], parts[3]), batch_size=256)

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
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)


def accuracy(x, y):
    return (model(x).argmax(1) == y).float().mean()


trainer = hetero_hvd.Trainer(model, optimizer, train, scheduler=scheduler)

for epoch in trainer.epochs(60):
    for x, y in trainer.batches():
        trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)
    if epoch % 10 == 9:
        found = trainer.evaluate(lambda x, y: {"accuracy": accuracy(x, y)}, test)["accuracy"]
        if trainer.is_leader:
            print(f"epoch {epoch}  loss {trainer.loss:.4f}  held-out accuracy {found:.4f}")
