"""Small data sets, and servers of data that fail when a test wants it."""
