"""Which devices of the cluster may be had now: what their owners use and what ails may not.

And which of them a trial has measured.
"""
