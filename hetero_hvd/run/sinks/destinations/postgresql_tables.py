"""Two tables in a PostgreSQL database: runs, and their samples.

What is exported again takes the place of what is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import TIMEOUT_SECONDS, library

SCHEMA = """
CREATE TABLE IF NOT EXISTS hetero_hvd_runs (
  run_id text PRIMARY KEY, name text, command text, tags jsonb, settings jsonb, origin jsonb,
  state text);
CREATE TABLE IF NOT EXISTS hetero_hvd_samples (
  run_id text, name text, step bigint, at timestamptz, value double precision,
  PRIMARY KEY (run_id, name, step));
"""
RUN = """INSERT INTO hetero_hvd_runs (run_id, name, command, tags, settings, origin, state)
  VALUES (%s, %s, %s, %s, %s, %s, 'running') ON CONFLICT (run_id) DO UPDATE SET state = 'running'"""
SAMPLE = """INSERT INTO hetero_hvd_samples (run_id, name, step, at, value)
  VALUES (%s, %s, %s, to_timestamp(%s), %s)
  ON CONFLICT (run_id, name, step) DO UPDATE SET at = EXCLUDED.at, value = EXCLUDED.value"""
LIMIT = f"-c statement_timeout={TIMEOUT_SECONDS:.0f}s -c lock_timeout={TIMEOUT_SECONDS:.0f}s"


class PostgresqlTables:
    """`postgresql://USER@HOST/DATABASE`; the password best from `PGPASSFILE` or `PGPASSWORD`."""

    resumes = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._psycopg = library("psycopg", "postgresql")

    def begin(self, run: RunStarted) -> None:
        """Connect, make the tables where there are none, and enter the run."""
        limit = int(TIMEOUT_SECONDS)
        self._connection = self._psycopg.connect(self._url, connect_timeout=limit, options=LIMIT)
        self._run_id = run.run_id
        facts = map(json.dumps, (run.tags, run.settings, run.origin))
        with self._transaction():
            self._connection.execute(SCHEMA)
            self._connection.execute(RUN, (run.run_id, run.name, " ".join(run.command), *facts))

    def write(self, samples: Sequence[Sample]) -> None:
        """One transaction for all of them."""
        rows = [(self._run_id, s.path, s.step, s.at_unix_seconds, s.value) for s in samples]
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.executemany(SAMPLE, rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._connection.transaction():
                yield
        except BaseException:
            self._connection.close()
            raise

    def end(self, state: str) -> None:
        """Say how the run has ended, and disconnect."""
        order = "UPDATE hetero_hvd_runs SET state = %s WHERE run_id = %s"
        with self._connection:
            self._connection.execute(order, (state, self._run_id))
