"""Typed values in JAX: the hijax type, `Array`, the primitives, and the shard functions that they apply."""
