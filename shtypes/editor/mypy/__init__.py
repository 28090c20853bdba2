"""The plugin for mypy: hooks, mypy's types and expressions, calls of users' functions. Loads no JAX."""
