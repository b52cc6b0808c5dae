"""What lies on the device: KV pool, hidden rows, block tables, and the one place that reads back."""
