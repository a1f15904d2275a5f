"""Which samples a step consumes, and which of them each worker takes."""
