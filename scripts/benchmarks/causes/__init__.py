"""Causes of slowness on purpose, chosen or drawn by chance, and what is said of them."""
