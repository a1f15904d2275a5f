"""What is recorded of a command, and of what a program has said, has no secrets in it."""

from __future__ import annotations

import pytest

from hetero_hvd.core.redaction import (
    HIDDEN,
    Redaction,
    is_secret_name,
    redacted,
    redacted_command,
    redacted_value,
)
from hetero_hvd.messages import Crashed, Evaluated, RunStarted, WorkerId
from hetero_hvd.messages.history import event_from_json, event_to_json

SECRET = "s3cr3t-Value"  # noqa: S105 - that is the point

COMMANDS = {
    "an option": ["--token", SECRET],
    "an option with =": [f"--api-key={SECRET}"],
    "an option with one line": ["-token", SECRET],
    "an option with _": ["--hf_token", SECRET],
    "an option in camel case": ["--apiKey", SECRET],
    "an option in camel case with =": [f"--authToken={SECRET}"],
    "a value that begins with a line": ["--password", f"-{SECRET}"],
    "a variable": ["env", f"WANDB_API_KEY={SECRET}", "python"],
    "a variable of AWS": [f"AWS_SECRET_ACCESS_KEY={SECRET}"],
    "a variable of PostgreSQL": [f"PGPASSWORD={SECRET}"],
    "a variable with quotes": [f"HF_TOKEN='{SECRET}'"],
    "a variable in a shell's line": ["sh", "-c", f"LR=1 HF_TOKEN={SECRET} python train.py"],
    "an option in a shell's line": ["sh", "-c", f"python train.py --token {SECRET} --lr 1"],
    "a key of Hydra": [f"wandb.api_key={SECRET}"],
    "a new key of Hydra": [f"++logger.token={SECRET}"],
    "a key of JSON": ["--config", f'{{"lr": 1, "password": "{SECRET}"}}'],
    "a key of a dictionary": [f"--config={{'api_key': '{SECRET}'}}"],
    "a URL": [f"redis://me:{SECRET}@host/0"],
    "a URL without a user": [f"redis://:{SECRET}@host/0"],
    "a password with signs": [f"redis://me:a@b:{SECRET}@host/0"],
    "a URL in an option": [f"--to=postgresql://a:{SECRET}@h/db"],
    "a URL with a token": [f"git clone https://{SECRET}{SECRET}@github.com/a/b"],
    "a URL with one slash": [f"http:/me:{SECRET}@host/x"],
    "a URL with no slash": [f"https:me:{SECRET}@host/x"],
    "a URL after a space": [f" https://me:{SECRET}@host/x"],
    "a URL whose password has a slash": [f"https://me:a/{SECRET}@host/x"],
    "a URL after a name": [f"--url=https://me:{SECRET}@host/x"],
    "a URL in a library's message": [f"get(url='http://h/x?part=1&password={SECRET}')"],
    "a query after a name": [f"url=http://h/x?password={SECRET}"],
    "names that hold names": [f"a=b=c=token={SECRET}"],
    "a query": [f"https://h/data?token={SECRET}&part=1"],
    "a signed query": [f"https://b.s3.amazonaws.com/x?X-Amz-Signature={SECRET}"],
    "a shared access signature": [f"https://h/x?se=2026&sig={SECRET}"],
    "a header": ["-H", f"Authorization: Bearer {SECRET}"],
    "a header in an option": [f"--header=Authorization: Basic {SECRET}"],
    "a header of one's own": ["-H", f"X-Api-Key: {SECRET}"],
    "a cookie": ["-H", f"Cookie: session={SECRET}"],
    "a bearer": [f"send Bearer {SECRET} there"],
}


@pytest.mark.parametrize("case", COMMANDS)
def test_secrets_of_a_command_are_hidden(case):
    """In all spellings: by the name of an option, variable or key, in a URL, in a header."""
    found = list(redacted_command(COMMANDS[case]))
    assert SECRET not in " ".join(found)
    assert HIDDEN in " ".join(found)
    assert len(found) == len(COMMANDS[case])


FORMS = (
    "hf_" + "a" * 30,
    "ghp_" + "b" * 36,
    "github_pat_" + "c" * 30,
    "glpat-" + "d" * 20,
    "npm_" + "e" * 30,
    "pypi-" + "f" * 40,
    "sk-" + "g" * 30,
    "AKIA" + "H" * 16,
    "ASIA" + "J" * 16,
    "AIza" + "k" * 35,
    "xoxb-" + "1" * 20,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
)


@pytest.mark.parametrize("token", FORMS)
def test_tokens_of_known_forms_are_hidden_anywhere(token):
    """Whatever stands around them."""
    assert redacted(token) == HIDDEN
    assert redacted(f"x {token} y") == f"x {HIDDEN} y"
    assert redacted_value("note", f"'{token}'") == f"'{HIDDEN}'"


HARMLESS = (
    ["train.py", "--lr", "0.1"],
    ["--tokenizer", "bpe", "--author", "me", "--keyframes=3", "--compass=n"],
    ["--max-tokens", "4096", "--num_tokens=12"],
    ["--token-file", "/run/secrets/hf", "--password_file=/run/p"],
    ["--password", "--lr", "1"][1:],
    ["s3://bucket/data?part=1&versionId=2", "ssh://git@github.com/a/b"],
    ["optimizer.key=adam", "--pin-memory", "true", "--monkey=1"],
    ["step 3: loss 0.5, speed 10 samples/s"],
    ["ValueError: job.http_token_file: found 'x', must be a file"],
)


@pytest.mark.parametrize("words", HARMLESS, ids=lambda words: words[0])
def test_nothing_else_is_hidden(words):
    """Words that only look so stay."""
    assert list(redacted_command(words)) == words


def test_an_option_without_a_value_hides_none():
    """What follows it is an option."""
    words = ["--password", "--lr", "1"]
    assert list(redacted_command(words)) == words


@pytest.mark.parametrize(
    "name", ["token", "HF_TOKEN", "aws-secret-access-key", "db.password", "Authorization", "my_pwd"]
)
def test_names_of_secrets(name):
    """Whatever joins their words."""
    assert is_secret_name(name)
    assert redacted(f"{name}=abc") == f"{name}={HIDDEN}"
    assert redacted_value(name, "abc") == HIDDEN
    assert redacted_value("note", "abc") == "abc"


def test_known_values_are_hidden_wherever_they_stand():
    """Those of variables whose names say so, if they are long enough to be no word."""
    redaction = Redaction()
    redaction.hide({"HF_TOKEN": SECRET, "OTHER_TOKEN": "abc", "MODE": "no secret"})
    assert redaction.text(f"no {SECRET}abc, no secret") == f"no {HIDDEN}abc, no secret"


def test_events_can_be_written_whatever_their_text_holds():
    """An argument need not be UTF-8; a run keeps its id, by which its parts are found."""
    redaction = Redaction()
    redaction.hide({"MY_TOKEN": "experiment", "YOUR_TOKEN": "secret\udcff"})
    started = RunStarted(
        run_id="experiment-1a2b",
        command=("train.py", "data/\udcff", "at secret\udcff"),
        nodes=(),
        settings={},
        tags={"file": "\udcff"},
    )
    found = event_from_json(event_to_json(redaction.event(started)))
    assert found.run_id == "experiment-1a2b"
    assert found.command == ("train.py", "data/\\udcff", f"at {HIDDEN}")
    assert found.tags == {"file": "\\udcff"}


def test_the_folder_of_a_shell_is_no_password():
    """PWD holds where the command runs, which is in many a path."""
    redaction = Redaction()
    redaction.hide({"PWD": "/home/me/project", "OLDPWD": "/home/me"})
    assert redaction.text("python /home/me/project/train.py") == "python /home/me/project/train.py"


def test_events_are_without_secrets():
    """All text that somebody else has written: commands, tags, what a script has raised."""
    redaction = Redaction()
    redaction.hide({"HF_TOKEN": SECRET})
    started = redaction.event(
        RunStarted(
            run_id="run",
            command=("train.py", "--token", "abc", SECRET),
            nodes=("alpha",),
            settings={"output": "out"},
            name=f"try {SECRET}",
            tags={"lr": "0.1", "api_key": "abc", "url": "redis://a:b@h"},
        )
    )
    assert started.command == ("train.py", "--token", HIDDEN, HIDDEN)
    assert started.name == f"try {HIDDEN}"
    assert started.tags == {"lr": "0.1", "api_key": HIDDEN, "url": f"redis://a:{HIDDEN}@h"}
    assert started.settings == {"output": "out"}
    crashed = redaction.event(
        Crashed(
            worker=WorkerId("alpha", 0),
            error="OSError: postgresql://a:b@h/db",
            traceback=f"x\n  get({SECRET!r})\n  password='abc'",
            user_error=False,
        )
    )
    assert crashed.error == f"OSError: postgresql://a:{HIDDEN}@h/db"
    assert crashed.traceback == f"x\n  get('{HIDDEN}')\n  password='{HIDDEN}'"
    assert crashed.worker == WorkerId("alpha", 0)
    evaluated = Evaluated(epoch=0, step=1, metrics={"token": 1.0})
    assert redaction.event(evaluated) is evaluated


LONG = {
    "one word": "A" * 300_000,
    "words in a row": "x-" * 100_000,
    "beginnings of tokens": "eyJ-" * 50_000,
    "beginnings of keys": "-----BEGIN " * 20_000,
    "beginnings of URLs": "a://b:" * 30_000,
    "assignments": "a=b;" * 50_000,
    "options": "--a " * 50_000,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", LONG)
def test_a_long_text_takes_no_time(case):
    """A script may raise an error with anything in it: its length counts once, not squared."""
    assert redacted(f"{LONG[case]} password={SECRET}").endswith(HIDDEN)
