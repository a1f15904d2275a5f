"""What the queue is told of a job that it has started: progress, speeds, links."""
