"""The slots of a job: starting, watching, restarting and ending their processes."""
