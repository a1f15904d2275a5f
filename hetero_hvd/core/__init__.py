"""Every decision of the product, as arithmetic: no clock, no chance, no input or output."""
