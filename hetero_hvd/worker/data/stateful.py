"""What a checkpoint can keep: objects that have a state dict."""

from __future__ import annotations

from typing import Any, Protocol


class Stateful(Protocol):
    """Anything with a state dict.

    Where it has an attribute `may_differ` that is true, a joiner gets a copy of it and checkpoints
    keep it, but it is not compared.
    """

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:  # noqa: ANN401
        """Take over a state."""
