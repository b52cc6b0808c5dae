"""`looped bench serve`: an open-loop client of a running server, and what its runs say."""
