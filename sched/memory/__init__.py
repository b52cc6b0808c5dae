"""Who enters and what it holds: admission, KV blocks, prefix cache, slots."""
