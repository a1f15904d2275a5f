"""What a model has registered, and what of it workers must compute together."""
