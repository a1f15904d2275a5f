"""Why a run is slow, and who is slower than it should be: from measured times to findings."""
