"""Where the driver is reached: its addresses, the workers' channels, the socket for commands."""
