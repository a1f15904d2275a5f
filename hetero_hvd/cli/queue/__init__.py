"""Commands for many jobs on few machines: submit one, see who waits for what."""
