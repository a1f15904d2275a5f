"""A GPT-2 of any size on the text files of a folder, in plain PyTorch."""

import argparse

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Subset
from transformers import GPT2Config, GPT2LMHeadModel

from hetero_hvd.data import ByteTokenizer, TextBlocks

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data", help="folder or URL with text files")
parser.add_argument("--suffixes", nargs="+", default=[".txt", ".md"])
parser.add_argument("--layers", type=int, default=12, help="12, 12 and 768 are GPT-2's")
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--block", type=int, default=1024, help="tokens that the model sees")
parser.add_argument("--batch-size", type=int, default=32, help="of a pass")
parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
parser.add_argument("--in-order", action="store_true", help="do not shuffle")
parser.add_argument("--weights", help="begin with the model of a checkpoint")
options = parser.parse_args()

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tokens = ByteTokenizer()
blocks = TextBlocks(options.data, options.block, tokens, suffixes=options.suffixes)
num_held_out = max(1, len(blocks) // 20)
train = Subset(blocks, range(len(blocks) - num_held_out))
val = Subset(blocks, range(len(blocks) - num_held_out, len(blocks)))
loader = DataLoader(train, options.batch_size, shuffle=not options.in_order, drop_last=True)
held_out = DataLoader(val, options.batch_size)

config = GPT2Config(
    vocab_size=tokens.vocab_size,
    n_positions=options.block,
    n_embd=options.width,
    n_layer=options.layers,
    n_head=options.heads,
    bos_token_id=tokens.separator,
    eos_token_id=tokens.separator,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
)
model = GPT2LMHeadModel(config).to(device)
if options.weights:
    model.load_state_dict(torch.load(options.weights, weights_only=True)["model"])
optimizer = torch.optim.AdamW(model.parameters(), options.lr, weight_decay=0.1)
num_steps = max(1, options.epochs * (len(loader) // options.accumulate))
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, num_steps)


def loss_of(block):
    with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
        return model(block.long(), labels=block.long()).loss


step = 0
for epoch in range(options.epochs):
    model.train()
    for number, block in enumerate(loader, 1):
        loss = loss_of(block.to(device)) / options.accumulate
        loss.backward()
        if number % options.accumulate == 0:
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
        print(f"step {step}  loss {loss * options.accumulate:.7g}")
    model.eval()
    with torch.no_grad():
        found = sum(len(block) * loss_of(block.to(device)) for block in held_out) / len(val)
    print(f"epoch {epoch}  held-out loss {found:.7g}")
    torch.save({"model": model.state_dict()}, "checkpoint.pt")
