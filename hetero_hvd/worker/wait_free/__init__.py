"""Steps that take what each worker gets done until the step before is reduced."""
