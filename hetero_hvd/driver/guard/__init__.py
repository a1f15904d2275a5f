"""Lets the workers of ailing devices go and come back, and tells of it outside."""
