"""What is found out about a pod, line by line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PodFinding:
    """One thing that was looked at.

    Attributes:
        what: It.
        found: How it is.
        to_do: What to do about it; empty: it is as it should be.
        stops_training: The pod cannot take part because of it.
    """

    what: str
    found: str
    to_do: str = ""
    stops_training: bool = False

    @property
    def mark(self) -> str:
        """How bad it is, in a word for people."""
        if self.stops_training:
            return "ERROR"
        return "note" if self.to_do else "ok"


@dataclass(frozen=True, kw_only=True)
class PodPlaces:
    """Where things are in a pod of a job.

    Attributes:
        keys: Files that only this user may read: the cluster key, then the token.
        writable: Folders that must take files; the first is the shared memory.
        driver: Name of the driver's Service.
        page_port: Where the driver's page is, TCP.
        advert_port: Where the driver listens for agents, UDP.
        agent_port: Where an agent is, TCP.
    """

    keys: tuple[str, str]
    writable: tuple[str, ...]
    driver: str
    page_port: int
    advert_port: int
    agent_port: int
