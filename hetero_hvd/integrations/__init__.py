"""Trainers of other packages on this package's steps; each package is optional."""
