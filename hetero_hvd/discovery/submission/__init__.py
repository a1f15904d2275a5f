"""What is said to the queue of a hub: jobs with all that they are made of, and orders."""
