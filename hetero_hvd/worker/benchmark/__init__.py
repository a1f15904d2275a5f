"""How fast this slot is, and how fast it trains the model of a script."""
