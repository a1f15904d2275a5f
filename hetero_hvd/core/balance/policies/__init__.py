"""Rules that divide the batch: ours, and those of the literature that it is measured against."""
