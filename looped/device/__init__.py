"""What lies on the device: KV pool, hidden rows, block tables, and the one reader of results."""
