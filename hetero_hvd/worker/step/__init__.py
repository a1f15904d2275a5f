"""One optimizer step: forward, backward, exact reduction, update; several may be under way."""
