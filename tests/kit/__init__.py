"""Rigs that tests and benchmarks share: hosts on one machine, jobs with faults, simulated jobs."""
