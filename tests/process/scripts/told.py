"""A worker that says what it was told at its start, and trains nothing."""

import msgspec
from scripted import report

import hetero_hvd

seat = hetero_hvd.init()
report({"launch": msgspec.to_builtins(seat.place.launch), "balance": seat.place.balance.balance})
