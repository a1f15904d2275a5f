"""An optimizer's state in parts by the memory that each worker has left, each part on two."""
