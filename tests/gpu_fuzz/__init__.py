"""Fuzz and soak on a GPU: `python -m tests.gpu_fuzz --shapes 20000 --launches 1000000 --seed 1`."""
