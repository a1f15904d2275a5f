"""`hetero-hvd export`: a run's records for other programs."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.watch.run_argument import add_run

HELP = """\
Write what was measured, evaluated and logged in a run, also along with it.

URL is one of
  csv:PATH  json:PATH  openmetrics:PATH       PATH may be -
  influx:PATH
  parquet:PATH  tensorboard:FOLDER
  wandb:PROJECT  mlflow:EXPERIMENT            they go where their own variables say
  postgresql://USER@HOST/DATABASE             password: PGPASSFILE or PGPASSWORD
  influx:http://HOST:8086/api/v2/write?...    token: INFLUX_TOKEN
  redis://HOST:6379/0                         password: REDISCLI_AUTH
or of another package's kind, which it registers as an entry point of hetero_hvd.sinks."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_run(command)
    command.add_argument("--to", default="csv:-", metavar="URL", help="default: csv:-")
    command.add_argument(
        "--follow", action="store_true", help="go on while the run does; ends with it"
    )


def act(arguments: argparse.Namespace) -> int:
    """Write it."""
    from hetero_hvd.run.sinks.export import export_run, follow_run  # noqa: PLC0415 - only here

    if arguments.follow:
        follow_run(arguments.run, arguments.to)
    else:
        export_run(arguments.run, arguments.to)
    return 0
