"""What is recorded of a command has no secrets in it."""

from __future__ import annotations

import pytest

from hetero_hvd.core.redaction import (
    HIDDEN,
    is_secret_name,
    redacted,
    redacted_command,
    redacted_value,
)

COMMANDS = {
    "nothing": (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
    "an option": (["--token", "abc"], ["--token", HIDDEN]),
    "an option with =": (["--api-key=abc"], [f"--api-key={HIDDEN}"]),
    "a variable": (
        ["env", "WANDB_API_KEY=abc", "python"],
        ["env", f"WANDB_API_KEY={HIDDEN}", "python"],
    ),
    "no value": (["--password", "--lr", "1"], ["--password", "--lr", "1"]),
    "a URL": (["redis://me:abc@host/0"], [f"redis://me:{HIDDEN}@host/0"]),
    "a URL in an option": (["--to=postgresql://a:b@h/db"], [f"--to=postgresql://a:{HIDDEN}@h/db"]),
    "a known form": (["hf_" + "a" * 30], [HIDDEN]),
    "one within": (["x ghp_" + "b" * 36 + " y"], [f"x {HIDDEN} y"]),
    "words that only look so": (
        ["--tokenizer", "bpe", "--author", "me", "--keyframes=3", "--compass=n"],
        ["--tokenizer", "bpe", "--author", "me", "--keyframes=3", "--compass=n"],
    ),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_secrets_of_a_command_are_hidden(case):
    """By the name of an option or variable, by the form of a token, in a URL; nothing else is."""
    given, expected = COMMANDS[case]
    assert list(redacted_command(given)) == expected


@pytest.mark.parametrize(
    "name", ["token", "HF_TOKEN", "aws-secret-access-key", "db.password", "Authorization", "my_pwd"]
)
def test_names_of_secrets(name):
    """Whatever joins their words."""
    assert is_secret_name(name)
    assert redacted(f"{name}=abc") == f"{name}={HIDDEN}"
    assert redacted_value(name, "abc") == HIDDEN
    assert redacted_value("note", "abc") == "abc"
