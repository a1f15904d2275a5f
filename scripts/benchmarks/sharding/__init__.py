"""The optimizer's state in parts, in unequal memories and beside a pipeline."""
