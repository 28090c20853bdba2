"""What each primitive of JAX does with typed values: a row each, by family."""
