"""A hub that is killed at a named point: `doomed_hub.py CALL MOMENT NUMBER MARKER hub WORD...`.

CALL is `module:name` of what is called there; MOMENT is one of `MOMENTS` below, of the call with
this number. The file MARKER appears when it happens. Journals are sealed when they have 20 kB.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import subprocess
import sys
from pathlib import Path

SEAL_BYTES = 20_000


class Doom:
    """Takes the place of a function, and kills this process at its call."""

    def __init__(self, real, moment, number, marker):
        self._real = real
        self._act = MOMENTS[moment]
        self._number = number
        self._marker = marker

    def __call__(self, *given, **named):
        """Do what the real one does, until it is time."""
        self._number -= 1
        if self._number:
            return self._real(*given, **named)
        return self._act(self, *given, **named)

    def __get__(self, owner, kind=None):
        """As a method has it."""
        return self if owner is None else lambda *given, **named: self(owner, *given, **named)

    def die(self):
        """As SIGKILL does it."""
        Path(self._marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, *_given, **_named):
        """Nothing of it is done."""
        self.die()

    def after(self, *given, **named):
        """It is done, and nobody knows."""
        self._real(*given, **named)
        self.die()

    def half(self, descriptor, content, *place):
        """Half of the bytes are written."""
        self._real(descriptor, content[: len(content) // 2], *place)
        self.die()

    def within(self, *given):
        """The last argument is being read."""
        self._real(*given[:-1], self._deadly())

    def beside(self, vector, **_named):
        """The process that it starts is at work, and waits for a reader of what it writes."""
        os.mkfifo(Path(vector[4]).with_suffix(".new"))
        subprocess.Popen(vector, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.die()

    def _deadly(self):
        self.die()
        yield


MOMENTS = {
    "before": Doom.before,
    "after": Doom.after,
    "half": Doom.half,
    "within": Doom.within,
    "beside": Doom.beside,
}


def main():
    """Run the hub until then."""
    call, moment, number, marker, *words = sys.argv[1:]
    store = importlib.import_module("hetero_hvd.hub.storage.store")
    store.SEAL_BYTES = SEAL_BYTES
    service = importlib.import_module("hetero_hvd.hub.service")
    service.LOOK_SECONDS = 0.1
    if call:
        name, _, path = call.partition(":")
        owner_path, _, attribute = path.rpartition(".")
        owner = pkgutil.resolve_name(f"{name}:{owner_path}" if owner_path else name)
        setattr(owner, attribute, Doom(getattr(owner, attribute), moment, int(number), marker))
    return importlib.import_module("hetero_hvd.cli").main(words)


if __name__ == "__main__":
    sys.exit(main())
