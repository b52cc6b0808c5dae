"""What trainings minimise: the expected loss over exits, and the gates' own losses."""
