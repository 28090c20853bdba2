"""How an op is applied to typed operands, and reshards, which ops are made of."""
