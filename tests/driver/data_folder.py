"""Trains on a folder of images: python data_folder.py URL EPOCHS [LOADER_PROCESSES [SECONDS]].

In URL, {node} is the name of the worker's node, and DATA_URL counts before it. Decoding a sample
takes so many seconds.
"""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader

import hetero_hvd
from hetero_hvd.data import ImageFolder

torch.manual_seed(0)
node = json.loads(os.environ["HETERO_HVD_LAUNCH"])["identity"]["worker"][0]
url, epochs, processes, seconds = (*sys.argv[1:], "0", "0")[:4]


def decoded(image):
    """A picture as numbers, slowly."""
    time.sleep(float(seconds))
    return torch.tensor(list(image.tobytes()), dtype=torch.float32) / 255


url = os.environ.get("DATA_URL", url)
images = ImageFolder(url.format(node=node), transform=decoded, cache_bytes=0, attempts=2)
model = torch.nn.Linear(3 * 8 * 8, len(images.classes))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(images, batch_size=12, shuffle=True, num_workers=int(processes))
trainer = hetero_hvd.Trainer(model, optimizer, loader)
for _ in trainer.epochs(int(epochs)):
    for x, y in trainer.batches():
        trainer.step(lambda x, y: torch.nn.functional.cross_entropy(model(x), y), x, y)
