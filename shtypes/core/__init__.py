"""Typed values in JAX: the hijax type, `Array`, the primitives and the local functions that they apply."""
