"""Analysis of traced programs: their equations, their communication, and its tracking by scopes."""
