"""The engine: options, sizes, one launch a step, and who is told of it."""
