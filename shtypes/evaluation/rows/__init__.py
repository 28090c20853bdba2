"""Rows of primitives, by family; those that need ops or `sh.lax` are in `lifting/rows/`."""
