"""BERT on a task of GLUE (sst2, mrpc, stsb, mnli, ...), by Hugging Face's Trainer alone."""

import argparse
import zlib

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hetero_hvd.data import glue

TASKS = ("sst2", "mrpc", "qqp", "rte")
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data", help="folder or URL with train.tsv and dev.tsv, as GLUE gives them out")
parser.add_argument("--task", choices=[*TASKS, "stsb", "mnli"], default="sst2")
parser.add_argument("--layers", type=int, default=12, help="12, 12 and 768 are BERT's")
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--length", type=int, default=128, help="words of a sample at most")
parser.add_argument("--batch-size", type=int, default=32, help="of a pass")
parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--lr", type=float, default=2e-5)
parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
parser.add_argument("--output", default="bert")
parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
options = parser.parse_args()

VOCABULARY = 2**15


def tokens(row):
    """Words as numbers by a digest, so that no vocabulary has to be fetched."""
    words = " [SEP] ".join(text for name, text in row.items() if name != "label").lower().split()
    ids = [2 + zlib.crc32(word.encode()) % (VOCABULARY - 2) for word in words[: options.length - 1]]
    return {"input_ids": [1, *ids], "labels": row["label"]}


def padded(rows):
    """A batch of texts of one length."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    found = torch.tensor(ids)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": found, "attention_mask": (found > 0).long(), "labels": labels}


def metrics(predicted):
    if options.task == "stsb":
        scores = predicted.predictions[:, 0]
        return {"pearson": float(np.corrcoef(scores, predicted.label_ids)[0, 1])}
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def rows(split):
    return glue(options.data, options.task, split, transform=tokens)


def held_out():
    """MNLI has a second set, of texts of other kinds than those of the training."""
    if options.task != "mnli":
        return rows("dev")
    return {"matched": rows("dev"), "mismatched": rows("dev_mismatched")}


set_seed(0)
config = BertConfig(
    vocab_size=VOCABULARY,
    num_labels={"stsb": 1, "mnli": 3}.get(options.task, 2),  # one is a score: a regression
    hidden_size=options.width,
    num_hidden_layers=options.layers,
    num_attention_heads=options.heads,
    intermediate_size=4 * options.width,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        options.output,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulate,
        num_train_epochs=options.epochs,
        learning_rate=options.lr,
        bf16=options.precision == "bf16",
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
    ),
    train_dataset=rows("train"),
    eval_dataset=held_out(),
    data_collator=padded,
    compute_metrics=metrics,
)
trainer.train(resume_from_checkpoint=options.resume)
