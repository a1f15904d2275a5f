"""Trainings of tiny models with Hugging Face's Trainer, with us or without.

Usage: huggingface.py JSON, with the fields of `trainer_faults.CASE`: `trainings` with the model,
arguments and checkpoint of each, and `is_plain`, if it is to be without us.
"""

from pathlib import Path

import torch
import transformers
from trainer_faults import CASE, fault_at, give_time, leave_result, tell_that_it_is_back

if CASE.get("is_plain"):
    Base = transformers.Trainer
else:
    from hetero_hvd.integrations.huggingface import Trainer as Base

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NO_DROPOUT_BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
transformers.logging.disable_progress_bar()


class Trainer(Base):
    """Tells what it computes, and meets a fault where the case says so."""

    _doing = "evaluate"

    def compute_loss(self, model, inputs, *more, **named):
        """Log how much of the batch is this worker's."""
        if model.training:
            fault_at(f"loss {self.state.global_step}")
            if CASE.get("faults"):
                give_time(self.state.global_step, self._steps.world_size)
        found = super().compute_loss(model, inputs, *more, **named)
        if model.training:
            self.log({"own_samples": len(inputs["input_ids"])})
        return found

    def prediction_step(self, *arguments, **named):
        """Of an evaluation, and of a prediction."""
        fault_at(f"{self._doing} {self.state.global_step}")
        return super().prediction_step(*arguments, **named)

    def predict(self, *arguments, **named):
        """Tell evaluations and predictions apart."""
        self._doing = "predict"
        return super().predict(*arguments, **named)

    def _train(self, num_epochs):
        tell_that_it_is_back()
        super()._train(num_epochs)

    def _save_optimizer_and_scheduler(self, output_dir):
        fault_at(f"save {self.state.global_step}")
        super()._save_optimizer_and_scheduler(output_dir)


class BeforeTheUpdate(transformers.TrainerCallback):
    """The place between the gradients and what becomes of them."""

    def on_pre_optimizer_step(self, args, state, control, **named):  # noqa: ARG002
        """See `trainer_faults`."""
        fault_at(f"update {state.global_step}")


def sequences(count):
    """Texts of unequal lengths, as numbers."""
    torch.manual_seed(1)
    lengths = torch.randint(4, 20, (count,))
    return [torch.randint(1, 60, (int(length),)) for length in lengths]


def padded(texts):
    """A batch as large as its longest text."""
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def language_model(texts):
    """GPT-2 on all texts; the loss is over tokens."""
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, loss_type="ForCausalLM", **NO_DROPOUT
    )  # fmt: skip

    def collate(samples):
        batch = padded([sample["input_ids"] for sample in samples])
        return batch | {"labels": batch["input_ids"].where(batch["input_ids"] > 0, -100)}

    return transformers.GPT2LMHeadModel(config), [{"input_ids": text} for text in texts], collate


def classifier(texts):
    """BERT on the parity of the first number; the loss is over samples."""
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32, **NO_DROPOUT_BERT
    )  # fmt: skip

    def collate(samples):
        labels = torch.tensor([sample["labels"] for sample in samples])
        return padded([sample["input_ids"] for sample in samples]) | {"labels": labels}

    rows = [{"input_ids": text, "labels": int(text[0] % 2)} for text in texts]
    return transformers.BertForSequenceClassification(config), rows, collate


def adapted(texts):
    """The language model with a LoRA adapter, which alone is trained."""
    import peft  # noqa: PLC0415 - for this one only

    model, rows, collate = language_model(texts)
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(model, config), rows, collate


MODELS = {"gpt2": language_model, "bert": classifier, "lora": adapted}


def accuracy(found):
    """Part of the labels that are predicted, those of the padding apart."""
    counts = found.label_ids != -100
    return {"accuracy": float((found.predictions[counts] == found.label_ids[counts]).mean())}


def train(model, arguments, *, resume=None, patience=None, ours=None, **_):
    """One training; gives what it has logged, and what a last evaluation finds."""
    torch.manual_seed(0)
    built, rows, collate = MODELS[model](sequences(88))
    args = transformers.TrainingArguments(
        **{"report_to": "none", "disable_tqdm": True, "logging_steps": 1, "use_cpu": True}
        | {"include_num_input_tokens_seen": "non_padding", "per_device_eval_batch_size": 4}
        | arguments
    )
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=patience or 1)
    trainer = Trainer(
        built,
        args,
        data_collator=collate,
        train_dataset=rows[:70],
        eval_dataset=rows[70:],
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
        callbacks=[BeforeTheUpdate(), *([stopping] if patience else [])],
        **(ours or {}),
    )
    output = trainer.train(resume_from_checkpoint=resume)
    best = trainer.state.best_model_checkpoint
    return {
        "is_leader": trainer.is_world_process_zero(),
        "log": trainer.state.log_history,
        "steps": output.global_step,
        "loss": output.training_loss,
        "best": best and Path(best).name,
        # The softmax of an attention does not depend on a bias of its keys: the gradient of that is
        # nothing but rounding, which Adam divides by its own size.
        "weights": [
            float(each.double().norm())
            for name, each in built.named_parameters()
            if not name.endswith("key.bias")
        ],
        "evaluation": trainer.evaluate(),
        "predictions": trainer.predict(rows[70:]).predictions.tolist(),
    }


leave_result([train(**training) for training in CASE["trainings"]])
