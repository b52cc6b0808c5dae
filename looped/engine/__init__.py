"""The engine: options, planning, one launch a step, and who is told of it."""
