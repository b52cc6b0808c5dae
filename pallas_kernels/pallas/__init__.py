"""The Pallas backend: attention and writes as Pallas kernels."""
