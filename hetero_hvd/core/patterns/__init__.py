"""What a recorded series tells of the job behind it, which says nothing itself."""
