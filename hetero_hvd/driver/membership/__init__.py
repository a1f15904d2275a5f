"""Who of the ready workers is a member, and where the members meet."""
