"""How a value gets from one type to another, explained: the plan in words, and who holds what on the way."""
