"""Several models trained in one loop, each by steps of its own: a GAN, teacher and student.

On each batch the loop's body takes the steps in its own order, the trainer's once. The training
position moves on when the body ends. Until then it counts the steps that are applied on the batch,
so that a fault between two of them costs none: who runs the body from its beginning, because it has
joined or has taken the batch anew, skips as many. Workers without samples do not run the body; the
others tell them which step follows.
"""
