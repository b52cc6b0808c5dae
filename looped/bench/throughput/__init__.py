"""`looped bench throughput`: how much an engine serves in a closed loop, and what exits add."""
