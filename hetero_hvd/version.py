"""The version of this package, for those who may not import the package as a whole."""

__version__ = "0.1.0"
