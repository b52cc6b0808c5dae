"""How a token is drawn: logit edits, filters and noise, and what a request keeps for it."""
