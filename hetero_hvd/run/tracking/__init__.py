"""What the workers tell of the training: to the balancer, the summary and the terminal."""
