"""Rows of primitives that need ops or `sh.lax`: reductions, loops and branches, derivative rules, collectives."""
