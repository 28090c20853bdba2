"""How each op is typed, from its operands' types alone. Pure."""
