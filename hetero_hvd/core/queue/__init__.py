"""The queue's decisions: who gets which devices, from facts and a time that is passed in."""
