"""On a cluster of Ray: an actor per node starts an agent there, and the driver hears where."""
