"""Wrong input that ends a script is one line and one exit code, before there is a trainer, too."""

import os
import subprocess
import sys

import pytest

from hetero_hvd.exit_codes import (
    EXIT_CUT_OFF,
    EXIT_FAILED,
    EXIT_REFUSED,
    EXIT_TRY_AGAIN,
    EXIT_UNFIT,
    EXIT_USER_ERROR,
)
from hetero_hvd.messages.launch import WORKER_VARIABLE

AT_EXIT = "import atexit\natexit.register(print, 'closed')\n"
OPENS = "from hetero_hvd.data import {name}\n{name}({arguments})\n"
SERVED = "http://127.0.0.1:9/files"
"""Nobody listens there."""

OTHER_HOOK = """
import hetero_hvd, sys
sys.excepthook = lambda *_: print("theirs")
from hetero_hvd import Trainer
Trainer(1, 2, 3)
"""
SCRIPTS = {
    "a folder that is not there": (
        OPENS.format(name="ImageFolder", arguments="'no-such/train'"),
        "data at no-such/train: not found: ",
    ),
    "a folder without images": (
        OPENS.format(name="ImageFolder", arguments="'.'"),
        "data at .: no .bmp, ",
    ),
    "a column that is not there": (
        OPENS.format(name="TextTable", arguments="'x.csv', {'text': 'sentence'}"),
        "x.csv: no column 'sentence'; it has text, label",
    ),
    "a server that does not answer": (
        OPENS.format(name="TextBlocks", arguments=f"{SERVED!r}, 4, attempts=1"),
        f"data at {SERVED}: cannot be listed: ",
    ),
    "a task that is none": (
        OPENS.format(name="glue", arguments="'.', 'sst'"),
        "GLUE task 'sst': must be one of ",
    ),
    "the script's own": (
        "import hetero_hvd\nraise hetero_hvd.UserError('--lr=x: must be a number')\n",
        "--lr=x: must be a number",
    ),
    "where another package has put its own hook": (
        OTHER_HOOK,
        "the model is an int: must be a torch.nn.Module",
    ),
}


def run_script(folder, text, **variables):
    """A script's exit code, output and errors."""
    (folder / "x.csv").write_text("text,label\na,1\n")
    (folder / "train.py").write_text(AT_EXIT + text)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("text", "line"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_wrong_input_before_training_is_one_line(tmp_path, text, line):
    """Alone the script ends in order with the code for it; the line names its place."""
    code, output, errors = run_script(tmp_path, text)
    assert (code, output) == (EXIT_USER_ERROR, "closed\n")
    assert errors.startswith(line)
    assert errors.count("\n") == 1
    assert "(train.py:" in errors


ENDS = {
    "wrong input": ("UserError('x')", EXIT_USER_ERROR, EXIT_REFUSED),
    "what may pass": ("TryAgainError('x')", EXIT_TRY_AGAIN, EXIT_CUT_OFF),
    "a node that cannot read its data": ("UnreadableError('x')", EXIT_FAILED, EXIT_UNFIT),
    "another error of ours": ("InvariantError('x')", EXIT_FAILED, EXIT_FAILED),
    "an error of the script": ("ValueError('x')", EXIT_FAILED, EXIT_FAILED),
}


@pytest.mark.parametrize("is_worker", [False, True])
@pytest.mark.parametrize("case", ENDS)
def test_the_exit_code_says_whose_fault_it_is(tmp_path, case, is_worker):
    """To a user, or to the driver, which starts no worker again for wrong input."""
    error, alone, below_driver = ENDS[case]
    text = f"import hetero_hvd\nfrom hetero_hvd.errors import *\nraise {error}\n"
    variables = {WORKER_VARIABLE: "alpha:0"} if is_worker else {}
    code, _, errors = run_script(tmp_path, text, **variables)
    assert code == (below_driver if is_worker else alone)
    is_told = case in list(ENDS)[:3]
    assert ("Traceback" in errors) is not is_told
    assert (errors == "x (train.py:5)\n") is is_told


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_the_code_is_the_same_where_nobody_reads_what_is_said(tmp_path, closed):
    """A hook that failed would have a traceback of its own."""
    text = "import hetero_hvd\nprint('begins')\nraise hetero_hvd.UserError('wrong')\n"
    (tmp_path / "train.py").write_text(text)
    words = ["sh", "-c", f"{sys.executable} train.py {closed}"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == EXIT_USER_ERROR
    assert "Traceback" not in done.stderr
    assert ("wrong" in done.stderr) is ("2>&-" not in closed)


def test_who_types_is_told_and_not_thrown_out():
    """At Python's prompt the next line is read."""
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input="import hetero_hvd\nraise hetero_hvd.UserError('wrong')\nprint('goes on')\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == "goes on\n"
    assert "wrong\n" in done.stderr
    assert "Traceback" not in done.stderr
