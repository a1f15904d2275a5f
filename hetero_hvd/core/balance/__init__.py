"""How the global batch is divided, and when another division is worth the move."""
