"""What a hub keeps: samples in journals and sealed segments, and an index of all of it."""
