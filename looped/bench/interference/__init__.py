"""`looped bench interference`: what prompts that arrive do to requests that decode, arm by arm."""
