"""From what could run to the batch that does: offer, policy's answers, aging, checks."""
