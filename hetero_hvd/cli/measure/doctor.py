"""`hetero-hvd doctor`: what this machine can train with."""

from __future__ import annotations

import argparse
import json

SUMMARY = "say what this machine can train with, and what not"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("--json", action="store_true", help="print JSON")


def act(arguments: argparse.Namespace) -> int:
    """Diagnose; 1 if it cannot train."""
    from hetero_hvd.probes.doctor import diagnose  # noqa: PLC0415 - only this command needs it

    diagnosis = diagnose()
    print(json.dumps(diagnosis.as_dict(), indent=2) if arguments.json else diagnosis.text())
    return 0 if diagnosis.can_train else 1
