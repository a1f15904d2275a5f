"""The latest state of a run as a hash in Redis."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample, latest
from hetero_hvd.run.sinks.sink import TIMEOUT_SECONDS, library, secret

KEY = "hetero_hvd:run:"
NEWEST = "hetero_hvd:newest"
"""Holds the `run_id` of the run that has begun last."""


class RedisHash:
    """`redis://HOST:6379/0`; the password best from `REDISCLI_AUTH`. Key: `hetero_hvd:run:ID`."""

    resumes = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = library("redis", "redis")

    def begin(self, run: RunStarted) -> None:
        """Connect, and enter the run."""
        limits = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
        password = secret("REDISCLI_AUTH")
        own = {"password": password} if password else {}
        self._client = self._redis.Redis.from_url(self._url, **limits, **own)
        self._key = KEY + run.run_id
        self._client.hset(self._key, mapping={"state": "running", "name": run.name})
        self._client.set(NEWEST, run.run_id)

    def write(self, samples: Sequence[Sample]) -> None:
        """The newest of each name, with all digits, and the step."""
        values = {path: repr(float(one.value)) for path, one in latest(samples).items()}
        step = max((one.step for one in samples), default=0)
        if values:
            self._client.hset(self._key, mapping=values | {"step": str(step)})

    def end(self, state: str) -> None:
        """Say how the run has ended, and disconnect."""
        self._client.hset(self._key, "state", state)
        self._client.close()
