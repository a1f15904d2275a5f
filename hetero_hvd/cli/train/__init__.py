"""Commands that start a job and tell a running one something."""
