"""What a process can tell of the end of its script."""

import json
import subprocess
import sys

import pytest

HEAD = """
import asyncio, argparse, atexit, contextlib, json, os, sys, threading
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.lead.script_end import ScriptEnd

told = []
end = ScriptEnd(WorkerId("a", 0), told.append)
atexit.register(lambda: os.write(3, json.dumps([end.ending, len(told)]).encode()))
"""
ENDINGS = {
    "none": ("", 0, None),
    "an exit": ("sys.exit()", 0, None),
    "an exit that says so": ("sys.exit(0)", 0, None),
    "a code": ("sys.exit(3)", 3, [3, "the script has ended with exit code 3"]),
    "a code that no system has": ("sys.exit(256 + 7)", 7, [7, "exit code 7"]),
    "words": ("sys.exit('no data')", 1, [1, "exit code 1"]),
    "wrong arguments": ("argparse.ArgumentParser().error('x')", 2, [2, "exit code 2"]),
    "within a function": ("def main(): sys.exit(3)\nmain()", 3, [3, "exit code 3"]),
    "within a loop of asyncio": (
        "async def main(): sys.exit(3)\nasyncio.run(main())",
        3,
        [3, "exit code 3"],
    ),
    "with something to be done before": (
        "try: sys.exit(3)\nfinally: print('bye')",
        3,
        [3, "exit code 3"],
    ),
    "one that is caught": ("with contextlib.suppress(SystemExit): sys.exit(3)", 0, None),
    "one after one that is caught": (
        "with contextlib.suppress(SystemExit): sys.exit(3)\nsys.exit(4)",
        4,
        [4, "exit code 4"],
    ),
    "one that is raised again": (
        "try: sys.exit(3)\nexcept SystemExit: raise",
        3,
        [3, "exit code 3"],
    ),
    "that of a thread": (
        "thread = threading.Thread(target=sys.exit, args=(3,))\nthread.start()\nthread.join()",
        0,
        None,
    ),
    "that of a child": (
        "if not os.fork(): atexit._clear(); sys.exit(3)\nos.wait()",
        0,
        None,
    ),
    "an error": ("raise ValueError('boom')", 1, [1, "a:0: ValueError: boom"]),
    "an error on the way out": (
        "try: sys.exit(3)\nfinally: 1 / 0",
        1,
        [1, "a:0: ZeroDivisionError: division by zero"],
    ),
    "Ctrl-C": ("raise KeyboardInterrupt", -2, [130, "ended by SIGINT"]),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_the_code_is_the_one_that_the_system_gets(tmp_path, case):
    """And an error is told once."""
    script, code, ending = ENDINGS[case]
    told = tmp_path / "told"
    with told.open("wb") as file:
        command = ["bash", "-c", f'exec "$0" "$@" 3>&{file.fileno()}', sys.executable, "-c"]
        command.append(HEAD + script)
        done = subprocess.run(
            command, check=False, capture_output=True, pass_fds=(file.fileno(),), timeout=60
        )
    found, num_told = json.loads(told.read_text())
    assert done.returncode == code, done.stderr
    assert num_told == ("Error" in str(ending))
    assert (found is None) == (ending is None)
    if ending is not None:
        assert found[0] == ending[0]
        assert found[1].endswith(ending[1])
