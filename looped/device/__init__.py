"""What lies on the device between launches, and the one place that reads from it.

state          KV pool, hidden rows, request table and sampling state, one pytree that steps donate
request_table  what is kept of the request in each slot, as rows of int32
pytree         dataclasses that JAX sees as pytrees
prompt_pool    places of prompt items between two depths
reader         the only readback
"""
