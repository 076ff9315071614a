"""Calls a pack from JAX on a GPU, in a process of its own: `jax_run.py FOLDER PREFIX`, the arrays as JSON on standard input. Prints D's bytes of each call, in hex."""

import importlib.util
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np


def pattern(shape, dtype, seed):
    """Small multiples of 1/8, which every dtype here has."""
    i = np.arange(int(np.prod(shape))).reshape(shape)
    return jnp.asarray(((i * 5 + i // 7 + seed) % 15 - 7) / 8, getattr(jnp, dtype))


folder, prefix = sys.argv[1:]
spec = importlib.util.spec_from_file_location("made", f"{folder}/{prefix}_jax.py")
made = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made)
made.load()
call = jax.jit(made.call)
for asked in json.load(sys.stdin):
    arrays = [pattern(shape, dtype, i) for i, (shape, dtype) in enumerate(asked)]
    for _ in range(3):  # XLA may record the later ones into a CUDA graph
        d = np.asarray(call(*arrays))
    print(d.tobytes().hex())
