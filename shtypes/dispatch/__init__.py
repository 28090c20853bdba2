"""How an op is applied to typed operands; and reshards, which other ops call."""
