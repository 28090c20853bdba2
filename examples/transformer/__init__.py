"""A decoder language model whose parallelism is only its types, and what trains it."""
