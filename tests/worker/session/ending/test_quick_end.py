"""The quick end of a worker's interpreter costs nothing that a script relies on."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_hvd.worker.session.ending import quick_end

SOURCE = Path(quick_end.__file__)
SITE = SOURCE.parents[2] / "site"
BEGIN = f"""
import atexit, gzip, importlib.util, io, os, sys, threading, time
kept = open("kept", "w")

class Cycle:
    def __init__(self, held=None):
        self.itself, self.held = self, held
    def __del__(self):
        os.write(1, b"taken apart|")

name = {quick_end.__name__!r}
spec = importlib.util.spec_from_file_location(name, {str(SOURCE)!r})
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
atexit.register(sys.modules[name].end_quickly)
"""
WAYS = {
    "of itself": ("", 0, ""),
    "by sys.exit": ("sys.exit(143)", 143, ""),
    "by words": ("sys.exit('words')", 1, "words\n"),
    "by an error": ("raise ValueError('mine')", 1, "ValueError: mine\n"),
    "by a signal": ("import signal; os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
}
LEFT = {
    "a hook from after": "atexit.register(lambda: print('hooked', end='|'))",
    "a thread": "threading.Timer(0.2, lambda: print('joined', end='|')).start()",
    "output that was not flushed": "print('printed', end='|')",
}
FILES = {
    "text": "kept.write('all of it')",
    "text in a cycle": "other = Cycle(kept); del other; kept.write('all of it')",
    "bytes in a cycle": "kept = Cycle(open('kept', 'wb')); kept.held.write(b'all of it')",
    "to be read, too": "kept = Cycle(open('kept', 'w+b')); kept.held.write(b'all of it')",
    "text over bytes": (
        "kept = Cycle(io.TextIOWrapper(open('kept', 'wb'))); kept.held.write('all of it')"
    ),
    "compressed text": "kept = Cycle(gzip.open('kept', 'wt')); kept.held.write('all of it')",
    "compressed bytes": "kept = Cycle(gzip.open('kept', 'wb')); kept.held.write(b'all of it')",
    "by an exit hook": "other = Cycle(kept); atexit.register(kept.write, 'all of it'); del kept",
    "beside a closed one": "Cycle(open('other', 'w')).held.close(); kept.write('all of it')",
    "beside one that nobody reads": (
        "r, w = os.pipe(); os.close(r); broken = Cycle(open(w, 'wb')); broken.held.write(b'x')\n"
        "kept.write('all of it')"
    ),
}


def ended(folder, script):
    """How a script of these lines has ended."""
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SITE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_exit_code_and_the_last_words_stay(tmp_path, way):
    """Whoever looks at them sees no difference."""
    script, code, words = WAYS[way]
    done = ended(tmp_path, f"other = Cycle(); {script}")
    assert done.returncode == code
    assert done.stderr.endswith(words)
    assert "taken apart" not in done.stdout  # nobody has looked for cycles


def test_who_was_not_asked_to_end_ends_as_ever(tmp_path):
    """A script that is done may rely on more than Python promises."""
    done = ended(tmp_path, "atexit.unregister(sys.modules[name].end_quickly); other = Cycle()")
    assert (done.returncode, done.stdout) == (0, "taken apart|")


@pytest.mark.parametrize("what", LEFT)
def test_what_a_script_leaves_for_its_end_is_done(tmp_path, what):
    """Before the memory goes."""
    done = ended(tmp_path, f"other = Cycle(); {LEFT[what]}")
    assert done.stdout in ("hooked|", "joined|", "printed|")


@pytest.mark.parametrize("kind", FILES)
def test_what_was_written_is_in_its_file(tmp_path, kind):
    """Without a close, which is bad style and common."""
    assert ended(tmp_path, FILES[kind]).returncode in (0, 120)
    opened = gzip.open if "compressed" in kind else open
    with opened(tmp_path / "kept", "rt") as file:
        assert file.read() == "all of it"
