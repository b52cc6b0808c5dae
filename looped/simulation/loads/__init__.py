"""Requests of a simulation: made up, read from a file, or taken from a log."""
