"""The Triton backend: hand-written kernels, called through jax-triton."""
