"""What is old in the catalogue of a run becomes coarser, so that its size has a bound."""
