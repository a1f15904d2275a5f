"""How a worker of the job comes to its end: what it is asked, and what it leaves in order."""
