"""How recorded runs differ: side by side in words and plots, and bit by bit."""
