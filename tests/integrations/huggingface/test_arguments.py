"""Every argument of transformers is known, and none is passed over."""

from dataclasses import fields
from pathlib import Path

import pytest
from transformers import TrainingArguments

from hetero_hvd.errors import ConfigError
from hetero_hvd.integrations.huggingface.arguments import RULES, check_arguments
from hetero_hvd.integrations.huggingface.reference import reference
from hetero_hvd.integrations.rules import Treatment

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "huggingface.md"
OTHER_VALUES = {
    "optim": "lomo",
    "average_tokens_across_devices": False,
    "save_on_each_node": True,
    "enable_jit_checkpoint": True,
    "push_to_hub": True,
    "ignore_data_skip": True,
    "accelerator_config": {"split_batches": True},
    "parallelism_config": object(),
    "dataloader_in_order": False,
    "train_sampling_strategy": "batch_rebalance",
    "fsdp": "full_shard",
    "deepspeed": "zero3.json",
    "debug": "tpu_metrics_debug",
}
"""A value of each refused argument that is not harmless."""


def test_each_argument_of_the_installed_version_has_a_rule():
    """And there is none that this version does not have."""
    assert {field.name for field in fields(TrainingArguments)} == RULES.keys()


def test_what_is_not_as_it_stands_says_why():
    """Refused and taken-over arguments each have a sentence."""
    assert [
        name for name, rule in RULES.items() if rule.treatment.value != "honoured" and not rule.why
    ] == []


def test_the_page_is_the_generated_one():
    """docs/reference/huggingface.md is what `scripts/pages` writes."""
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_the_defaults_are_accepted(tmp_path):
    """Whatever the environment makes of them."""
    check_arguments(TrainingArguments(str(tmp_path)))


def test_each_refused_argument_has_a_case():
    """In the table of this test."""
    refused = {name for name, rule in RULES.items() if rule.treatment is Treatment.REFUSED}
    assert refused == OTHER_VALUES.keys()


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_refused_argument_is_named_with_its_reason(tmp_path, name):
    """In one line for each; what transformers has made of the value may be shown."""
    args = TrainingArguments(str(tmp_path))
    value = OTHER_VALUES[name]
    if name in ("optim", "accelerator_config", "debug"):
        value = getattr(TrainingArguments(str(tmp_path), **{name: value}), name)
    setattr(args, name, value)
    with pytest.raises(ConfigError, match=f"TrainingArguments.{name}=") as caught:
        check_arguments(args)
    assert RULES[name].why in caught.value.problems[0]
    assert len(caught.value.problems) == 1


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    """A line for each."""
    args = TrainingArguments(str(tmp_path), save_on_each_node=True, push_to_hub=True)
    with pytest.raises(ConfigError) as caught:
        check_arguments(args)
    assert len(caught.value.problems) == 2


def test_an_argument_of_a_later_version_is_refused_if_it_is_used(tmp_path, monkeypatch):
    """With its default it asks for nothing."""
    monkeypatch.delitem(RULES, "seed")
    args = TrainingArguments(str(tmp_path))
    check_arguments(args)
    args.seed = 7
    with pytest.raises(ConfigError, match="seed=7: hetero_hvd does not know it"):
        check_arguments(args)
