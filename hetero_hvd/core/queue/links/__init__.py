"""What the links of nodes cost, as far as jobs have measured them."""
