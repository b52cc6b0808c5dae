"""`looped bench replay`: one list of arrivals, played to a server of each policy."""
