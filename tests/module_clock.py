"""A clock for one module alone; other threads of the process, and pytest itself, keep theirs."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def give_clock(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]
) -> None:
    """Have a module that imports `time` call other functions than the real ones.

    Args:
        monkeypatch: Takes it back at the end of the test.
        module: Which one.
        functions: By their names in `time`; all others stay as they are.
    """
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | functions))
