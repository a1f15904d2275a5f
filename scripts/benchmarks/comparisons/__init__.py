"""Ours against other frameworks, its modes against each other, and its costs against a limit."""
