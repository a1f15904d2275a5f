"""What survives when workers are lost or join, and how all become equal again."""
