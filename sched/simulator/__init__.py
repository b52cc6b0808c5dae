"""The Scheduler on a clock and an executor of its own."""
