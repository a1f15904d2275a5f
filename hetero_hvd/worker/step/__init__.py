"""What the steps of all training modes are made of: passes, reduction, update, order."""
