"""How a primitive, and a program of primitives, is evaluated with typed operands."""
