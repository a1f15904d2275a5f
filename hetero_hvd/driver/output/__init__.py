"""What a job says: the bus of its events, the terminal, log files, the workers' own output."""
