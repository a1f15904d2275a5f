"""What a run costs in money and energy, from who was in the job when; pure."""
