"""ResNet-50 on a folder of images (ImageNet's layout), in plain PyTorch."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import DataLoader

from hetero_hvd.data import ImageFolder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data", help="folder or URL with train/CLASS/*.jpg and val/CLASS/*.jpg")
parser.add_argument("--depths", type=int, nargs=4, default=[3, 4, 6, 3], help="ResNet-50's")
parser.add_argument("--width", type=int, default=64, help="channels of the first layers")
parser.add_argument("--pixels", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=256, help="of a pass")
parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
parser.add_argument("--in-order", action="store_true", help="do not shuffle")
parser.add_argument("--weights", help="begin with the model of a checkpoint")
options = parser.parse_args()


class Bottleneck(nn.Module):
    """Three convolutions and a way around them."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.around = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        """Images of shape [samples, channels, height, width]."""
        return torch.relu(self.body(x) + self.around(x))


def resnet(num_classes):
    """He et al., Deep Residual Learning for Image Recognition, 2015, with v1.5's strides."""
    width = options.width
    layers = [nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    inputs = width
    for stage, depth in enumerate(options.depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(inputs, width << stage, stride))
            inputs = 4 * (width << stage)
    head = nn.Linear(inputs, num_classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def scaled(image):
    """A square tensor, whatever the picture's shape."""
    x = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    x = x.view(1, image.height, image.width, 3).permute(0, 3, 1, 2) / 255
    return interpolate(x, (options.pixels, options.pixels), mode="bilinear")[0] * 2 - 1


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train = ImageFolder(f"{options.data}/train", transform=scaled)
val = ImageFolder(f"{options.data}/val", transform=scaled)
loader = DataLoader(train, options.batch_size, shuffle=not options.in_order, drop_last=True)
held_out = DataLoader(val, options.batch_size)

model = resnet(len(train.classes)).to(device)
if options.weights:
    model.load_state_dict(torch.load(options.weights, weights_only=True)["model"])
optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(options.epochs, 1))


def loss_of(images, labels):
    with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
        return cross_entropy(model(images), labels)


step = 0
for epoch in range(options.epochs):
    model.train()
    for number, (images, labels) in enumerate(loader, 1):
        loss = loss_of(images.to(device), labels.to(device)) / options.accumulate
        loss.backward()
        if number % options.accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        print(f"step {step}  loss {loss * options.accumulate:.7g}")
    scheduler.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x.to(device)).argmax(1).cpu() == y).sum() for x, y in held_out)
    print(f"epoch {epoch}  accuracy {right / len(val):.7g}")
    torch.save({"model": model.state_dict()}, "checkpoint.pt")
