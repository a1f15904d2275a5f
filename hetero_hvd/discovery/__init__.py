"""How nodes announce themselves, and how the driver and an agent recognise each other."""
