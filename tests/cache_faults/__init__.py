"""Faults in a cache of compiled kernels: `python -m tests.cache_faults --count 5000 --seed 1`."""
