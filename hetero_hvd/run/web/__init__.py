"""The driver's HTTP side: page, events, status, orders."""

from hetero_hvd.run.web.server import Web

__all__ = ["Web"]
