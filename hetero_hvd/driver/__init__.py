"""Runs once per job: starts the workers, decides who is a member, balances, reports."""
