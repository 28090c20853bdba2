"""The rows of the table of primitives that have no body."""
