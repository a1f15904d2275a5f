"""The state of a training outside its workers: when it is kept, which of it, and where."""
