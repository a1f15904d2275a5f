"""Steps that give the same bits on any cluster."""
