"""What this machine is made of, and what of it may be used."""
