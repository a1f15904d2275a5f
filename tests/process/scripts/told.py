"""A worker that says what it was told at its start, and trains nothing."""

import msgspec
from scripted import report

import hetero_hvd

context = hetero_hvd.init()
report(
    {
        "launch": msgspec.to_builtins(context.settings.launch),
        "balance": context.settings.lead.balance.balance,
    }
)
