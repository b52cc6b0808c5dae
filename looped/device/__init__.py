"""What lies on the device between launches, and the one place that reads from it.

state          KV pool, hidden rows and sampling state, as one pytree that steps donate
block_tables   the scheduler's tables as one array
prompt_pool    places of prompt items between two depths
reader         the only readback
"""
