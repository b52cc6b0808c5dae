"""Records of a run: launch log, timeline, exit and gate records, traces and profiles."""
