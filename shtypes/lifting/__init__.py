"""Plain JAX programs, typed: `lift` and its rows, one for each primitive."""
