"""The mypy plugin: hooks, mypy's types and expressions, calls of users' functions. Does not import JAX."""
