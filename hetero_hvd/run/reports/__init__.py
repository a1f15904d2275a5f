"""What is made of recorded runs: figures, plots, pages, exports, comparisons."""
