"""The typed listing of a program: its source with the type of every value, and of every cotangent, beside it."""
